#include "muster/rpc/network_agent.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/net/tcp.h"
#include "muster/rpc/own_address.h"
#include "muster/rpc/texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <system_error>
#include <utility>

namespace muster::rpc {
namespace {

// How long answers that are on their way may take when the agent stops.
constexpr Duration kDrainMax = std::chrono::seconds(2);
constexpr Duration kLeaveMax = std::chrono::seconds(5);
constexpr std::string_view kComponent = "rpc";

// For whoever waits for a task: it has ended, or was cancelled.
class Word {
 public:
  explicit Word(std::promise<void>& promise) : promise_(promise) {}
  ~Word() { promise_.set_value(); }
  Word(const Word&) = delete;
  Word& operator=(const Word&) = delete;

 private:
  std::promise<void>& promise_;
};

// How many descriptors this process may have.
std::uint64_t descriptors_max() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
}

}  // namespace

NetworkAgent::NetworkAgent(AgentOptions options, RequestHandler& handler,
                           net::LoopDescriptors descriptors)
    : options_(std::move(options)),
      member_{options_.self, Random::from_system().next(), "", "", options_.devices},
      timeout_(options_.timeout.count()),
      callbacks_("rpc-callback", options_.callback_thread_count),
      loop_(std::move(descriptors)),
      core_(core_options(), loop_, clock_, handler),
      retries_(std::make_unique<Retries>(*this, loop_, clock_)) {}

CoreOptions NetworkAgent::core_options() {
  CoreOptions core(options_.self);
  core.incarnation = member_.incarnation;
  core.sign_of_life_interval = options_.sign_of_life_interval;
  core.silence_max = options_.silence_max;
  core.connect_timeout = options_.connect_timeout;
  core.link.limits = options_.limits;
  core.link.queue_bytes_max = options_.queue_bytes_max;
  core.strangers_max = std::min(options_.strangers_max, strangers_max_of(descriptors_max()));
  core.set_accepting = [this](bool accepting) {
    if (listener_) listener_->set_accepting(accepting);
  };
  if (options_.spins) {
    core.link.hot = &hot_;
    core.link.crowd = crowd_;
  }
  core.link.watch = watch_by(loop_);
  // The loop writes what others wait for, and who reads may be the only one to write.
  core.may_wait = [this] {
    return std::this_thread::get_id() != io_thread_.load() && !Link::is_reading_here();
  };
  core.open_stream = [this](Member member) { return open_stream(std::move(member)); };
  if (options_.faults) core.faults = std::make_shared<Faults>(*options_.faults);
  core.devices = std::make_shared<DeviceDirectory>(options_.self.name(), options_.device_support);
  return core;
}

NetworkAgent::~NetworkAgent() {
  shutdown();
  // Other threads may have left something on their way out. It uses members, so now.
  loop_.run_what_is_left();
}

Result<std::shared_ptr<NetworkAgent>> NetworkAgent::start(AgentOptions options,
                                                          OpenStore open_store,
                                                          RequestHandler& handler,
                                                          Duration patience) {
  auto descriptors = net::LoopDescriptors::open();
  if (!descriptors) {
    return fail(ErrorKind::Unavailable,
                fmt::format("cannot start the I/O loop of RPC: {}", descriptors.error().message));
  }
  auto agent = std::make_shared<NetworkAgent>(std::move(options), handler, std::move(*descriptors));
  try {
    agent->thread_ = std::thread([raw = agent.get()] {
      ::prctl(PR_SET_NAME, "rpc-io", 0, 0, 0);
      raw->loop_.run();
    });
  } catch (const std::system_error& thrown) {
    return fail(ErrorKind::Unavailable,
                fmt::format("cannot start the I/O thread of RPC: {}", thrown.code().message()));
  }
  agent->is_running_ = true;
  agent->io_thread_ = agent->thread_.get_id();
  std::promise<Result<>> up;
  std::future<Result<>> outcome = up.get_future();
  const TimePoint deadline = after(SystemClock().now(), patience);
  agent->on_loop([&] { agent->tasks_.start(agent->come_up(std::move(open_store), deadline, up)); });
  if (auto came = outcome.get(); !came) {
    agent->shutdown();
    return fail(came.error());
  }
  return agent;
}

Task<void> NetworkAgent::come_up(OpenStore open_store, TimePoint deadline,
                                 std::promise<Result<>>& up) {
  Result<> outcome = co_await join(std::move(open_store), deadline);
  up.set_value(std::move(outcome));
}

Task<Result<>> NetworkAgent::join(OpenStore open_store, TimePoint deadline) {
  if (auto listening = listen(); !listening) co_return listening;
  if (options_.spins) {
    loop_.look_before_sleep([this] { return hot_.poll(); },
                            [this] { return hot_.prepare_to_sleep(); },
                            [this] { return crowd_->give_way(); });
  }
  core_.begin();
  auto opened = co_await open_store(loop_);
  if (!opened) co_return fail(opened.error());
  store_ = std::move(*opened);
  GroupEntry entry(member_);
  entry.world_size = options_.world_size;
  entry.options = options_.group;
  entry.deadline = deadline;
  co_return co_await core_.join(*store_, std::move(entry));
}

Result<> NetworkAgent::listen() {
  const auto place = address_to_bind(options_.host);
  if (!place) return fail(place.error());
  auto listener = net::listen_for_sockets(loop_, {*place, 0}, [this](Fd socket) {
    core_.accept(std::make_unique<SocketStream>(std::move(socket)), "another machine");
  });
  if (!listener) return fail(listener.error());
  listener_ = std::move(*listener);
  member_.address = net::describe({options_.host, listener_->port()});
  if (*place == options_.host) {
    log::debug(kComponent, "others reach {} at {}", self().describe(), member_.address);
  } else {
    log::info(kComponent,
              "others reach {} at {}, which is no address of this machine: it listens at every one",
              self().describe(), member_.address);
  }
  if (!options_.uses_shared_memory) return {};
  Random random = Random::from_system();
  auto local = LocalListener::create(loop_, random, [this](std::unique_ptr<Stream> stream) {
    core_.accept(std::move(stream), "this machine");
  });
  if (!local) {
    log::info(kComponent, "{} offers no shared memory: {}", self().describe(),
              local.error().message);
    return {};
  }
  local_listener_ = std::move(*local);
  member_.local_address = local_listener_->address();
  return {};
}

Task<Result<std::unique_ptr<Stream>>> NetworkAgent::open_stream(Member member) {
  if (member.incarnation == core_.incarnation()) {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      co_return fail(ErrorKind::Unavailable, describe_errno(errno));
    }
    core_.accept(std::make_unique<SocketStream>(Fd(ends[1])), "itself");
    std::unique_ptr<Stream> stream = std::make_unique<SocketStream>(Fd(ends[0]));
    co_return stream;
  }
  if (options_.uses_shared_memory && !member.local_address.empty()) {
    auto met = co_await meet(loop_, member.local_address);
    if (met) co_return met;
    log::debug(kComponent, "{} reaches {} by TCP: {}", self().describe(), member.info.describe(),
               met.error().message);
  }
  auto endpoint = net::parse_endpoint(member.address, 0);
  if (!endpoint) co_return fail(endpoint.error());
  auto socket = co_await net::connect_socket(loop_, *endpoint);
  if (!socket) co_return fail(socket.error());
  std::unique_ptr<Stream> stream = std::make_unique<SocketStream>(std::move(*socket));
  co_return stream;
}

// ---- calling ------------------------------------------------------------------------------------

void NetworkAgent::submit(std::string_view to, Message request,
                          std::optional<double> timeout_seconds, std::unique_ptr<CallSink> sink) {
  const auto refuse = [&](std::string text) {
    calls().refuse(std::move(sink), {CallErrorKind::Rejected, std::move(text), "", false});
  };
  if (!is_request(request.type)) return refuse(requests_only_text());
  if (!is_running_) return refuse(not_running_text(self(), request.type));
  const auto timeout = call_timeout(timeout_seconds, this->timeout());
  if (!timeout) return refuse(timeout.error().message);
  core_.submit(to, std::move(request), *timeout, std::move(sink));
}

Future<Message> NetworkAgent::send_with_retries(std::string_view to, Message request,
                                                RetryOptions options) {
  return retries_->send(std::string(to), std::move(request), options);
}

bool NetworkAgent::on_loop(const std::function<void()>& work) {
  std::promise<void> done;
  {
    const std::lock_guard lock(door_);
    if (is_going_down_) return false;
    loop_.post([&] {
      work();
      done.set_value();
    });
  }
  done.get_future().wait();
  return true;
}

// ---- the end ------------------------------------------------------------------------------------

void NetworkAgent::shutdown() {
  // It would wait for itself, for ever.
  MUSTER_ASSERT(std::this_thread::get_id() != io_thread_.load());
  MUSTER_ASSERT(!callbacks_.is_current());
  std::call_once(stopped_, [this] {
    is_running_ = false;
    if (!thread_.joinable()) return;
    std::promise<void> down;
    {
      const std::lock_guard lock(door_);
      is_going_down_ = true;
      loop_.post([&] {
        tasks_.cancel_all();
        tasks_.start(go_down(down));
      });
    }
    down.get_future().wait();
    loop_.stop();
    thread_.join();
    io_thread_ = std::thread::id();  // the next thread may get the same
    callbacks_.stop();
  });
}

void NetworkAgent::wait_for_peers_to_leave() {
  std::promise<void> alone;
  if (on_loop([&] { tasks_.start(wait_until_alone(alone)); })) alone.get_future().wait();
}

void NetworkAgent::end_group() {
  std::promise<void> ended;
  const bool is_begun = on_loop([&] {
    core_.expect_departures();
    tasks_.start(end_group_on_loop(ended));
  });
  if (is_begun) ended.get_future().wait();
}

Task<void> NetworkAgent::end_group_on_loop(std::promise<void>& ended) {
  const Word word(ended);
  const TimePoint patience = loop_.now() + kLeaveMax;
  if (const auto outcome = co_await core_.group()->end(patience); !outcome) {
    log::warn(kComponent, "{} could not say that its group has ended: {}", self().describe(),
              outcome.error().message);
  }
}

Task<void> NetworkAgent::wait_until_alone(std::promise<void>& alone) {
  const Word word(alone);
  const TimePoint deadline = loop_.now() + kDrainMax;
  while (core_.peer_count() > 0 && loop_.now() < deadline) {
    const TimePoint soon = loop_.now() + std::chrono::milliseconds(1);
    co_await sleep_until(loop_, soon);
  }
}

Task<void> NetworkAgent::go_down(std::promise<void>& down) {
  listener_.reset();
  local_listener_.reset();
  if (core_.group() != nullptr) {
    const TimePoint patience = loop_.now() + kLeaveMax;
    if (auto left = co_await core_.group()->leave(patience); !left) {
      log::warn(kComponent, "{} could not leave its group: {}", self().describe(),
                left.error().message);
    }
  }
  const TimePoint drained_by = loop_.now() + kDrainMax;
  while (core_.has_output() && loop_.now() < drained_by) {
    const TimePoint soon = loop_.now() + std::chrono::milliseconds(1);
    co_await sleep_until(loop_, soon);
  }
  core_.stop_answering();
  retries_->stop();
  core_.close({CallErrorKind::Rejected, agent_stopped_text(self()), "", true});
  store_.reset();
  down.set_value();
}

}  // namespace muster::rpc
