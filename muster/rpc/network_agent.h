// NetworkAgent: the agent of a real process. One thread does all I/O on one loop; calls are made
// from any thread and usually written and read by it.
//
// Same machine: shared memory; otherwise TCP, as it is found out for each worker.
#pragma once

#include "muster/base/assert.h"
#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/transport.h"
#include "muster/rpc/agent.h"
#include "muster/rpc/agent_core.h"
#include "muster/rpc/crowd.h"
#include "muster/rpc/faults.h"
#include "muster/rpc/group.h"
#include "muster/rpc/hot_links.h"
#include "muster/rpc/local_meeting.h"
#include "muster/rpc/retries.h"
#include "muster/store/store.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace muster::rpc {

struct AgentOptions {
  explicit AgentOptions(WorkerInfo who) : self(std::move(who)) {}

  WorkerInfo self;
  // How many workers the group has; nothing: they come and go.
  std::optional<std::int64_t> world_size;
  // Where the others reach this worker; address_to_bind says where it listens.
  std::string host = "127.0.0.1";
  Duration timeout = std::chrono::seconds(60);  // of calls; zero: none
  std::size_t callback_thread_count = 4;
  bool uses_shared_memory = true;
  // Whether threads look for a while for what they wait for before they sleep.
  bool spins = true;
  // A connection on which nothing was sent for so long carries a sign of life; one on which nothing
  // was heard for `silence_max` is given up.
  Duration sign_of_life_interval = std::chrono::seconds(5);
  Duration silence_max = std::chrono::seconds(10);
  Duration connect_timeout = std::chrono::seconds(10);
  DeviceOptions devices;
  std::shared_ptr<DeviceSupport> device_support;  // nothing: tensors of the CPU alone
  FrameLimits limits;
  std::size_t queue_bytes_max = std::size_t{256} << 20U;
  std::int64_t strangers_max = kStrangersMax;
  GroupOptions group;
  std::optional<FaultOptions> faults;  // nothing: nothing goes wrong on purpose
};

// Opens the store through which the workers find each other, on the agent's loop; what is in it is
// theirs alone. What the store
// needs lives as long as the pointer.
using OpenStore = std::function<Task<Result<std::shared_ptr<store::Store>>>(net::EpollLoop&)>;

class NetworkAgent final : public Agent {
 public:
  // Joins the group and waits until all of it has come (static), or knows this worker (dynamic), or
  // until `patience` is over. Requires: `handler` outlives the agent.
  static Result<std::shared_ptr<NetworkAgent>> start(AgentOptions options, OpenStore open_store,
                                                     RequestHandler& handler, Duration patience);
  // Use `start`.
  NetworkAgent(AgentOptions options, RequestHandler& handler, net::LoopDescriptors descriptors);
  ~NetworkAgent() override;

  const WorkerInfo& self() const override { return options_.self; }
  CallResult<WorkerInfo> find(std::string_view name) const override { return core_.find(name); }
  CallResult<WorkerInfo> find(std::int64_t id) const override { return core_.find(id); }
  std::vector<WorkerInfo> workers() const override { return core_.workers(); }
  std::uint64_t process_of(std::string_view name) const override { return core_.process_of(name); }
  void submit(std::string_view to, Message request, std::optional<double> timeout_seconds,
              std::unique_ptr<CallSink> sink) override;
  Future<Message> send_with_retries(std::string_view to, Message request,
                                    RetryOptions options) override;
  DeviceRoute route_to(std::string_view to) const override {
    return core_.devices().request_to(to);
  }
  std::shared_ptr<DeviceSupport> device_support() const override {
    return core_.devices().support();
  }
  std::vector<Device> devices() const override { return core_.devices().devices(); }
  Duration timeout() const override { return Duration(timeout_.load()); }
  void set_timeout(Duration timeout) override {
    MUSTER_ASSERT(timeout >= Duration::zero());
    timeout_ = timeout.count();
  }
  Pool& callbacks() override { return callbacks_; }
  Calls& calls() override { return core_.calls(); }
  // Not from a callback of a future, nor from an inline function. What was answered goes out
  // before; a dynamic group is left.
  void shutdown() override;
  std::map<std::string, std::string> metrics() const override { return core_.metrics(); }

  // Whether this thread is one of its own, which `shutdown` would wait for.
  bool is_current() const {
    return callbacks_.is_current() || std::this_thread::get_id() == io_thread_.load();
  }
  // Until the others have closed their connections to this worker, but not for long: what they were
  // told last must not be lost with a connection that is closed too early.
  void wait_for_peers_to_leave();
  // All workers have agreed that the group is over; before `shutdown`. See Group::end. Like the one
  // above it ends at once if another thread calls `shutdown` meanwhile.
  void end_group();

  bool is_static() const { return options_.world_size.has_value(); }
  const std::string& address() const { return member_.address; }
  // How this worker reaches another: "tcp", "shared memory"; empty while it does not.
  std::string kind_of_connection(std::string_view name) const {
    return core_.kind_of_connection(name);
  }

 private:
  CoreOptions core_options();
  Task<void> come_up(OpenStore open_store, TimePoint deadline, std::promise<Result<>>& up);
  Task<Result<>> join(OpenStore open_store, TimePoint deadline);
  Task<void> go_down(std::promise<void>& down);
  Result<> listen();
  Task<Result<std::unique_ptr<Stream>>> open_stream(Member member);
  Task<void> wait_until_alone(std::promise<void>& alone);
  Task<void> end_group_on_loop(std::promise<void>& ended);
  // Runs on the loop's thread and waits for it; false, and does not, once the agent goes down.
  bool on_loop(const std::function<void()>& work);

  const AgentOptions options_;
  Member member_;
  std::atomic<Duration::rep> timeout_;
  Pool callbacks_;
  net::EpollLoop loop_;
  HotLinks hot_;
  const std::shared_ptr<Crowd> crowd_ = std::make_shared<Crowd>();
  const SystemClock clock_;
  AgentCore core_;
  std::atomic<bool> is_running_ = false;
  std::once_flag stopped_;
  std::mutex door_;  // guards what follows
  bool is_going_down_ = false;

  // On the loop.
  std::unique_ptr<net::Listener> listener_;
  std::unique_ptr<LocalListener> local_listener_;
  std::shared_ptr<store::Store> store_;
  std::unique_ptr<Retries> retries_;
  TaskScope tasks_;
  std::thread thread_;
  std::atomic<std::thread::id> io_thread_;  // its id, for whoever asks while it ends
};

}  // namespace muster::rpc
