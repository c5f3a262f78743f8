#include "tests/rendezvous_sim/world.h"

#include "muster/base/assert.h"
#include "muster/rendezvous/hosted_driver.h"
#include "muster/rendezvous/shared_driver.h"
#include "muster/rendezvous/state_codec.h"
#include "muster/rendezvous/store_backend.h"
#include "muster/store/client_rules.h"
#include "muster/wire/codec.h"
#include "tests/fuzz/requests.h"

#include <algorithm>
#include <utility>

namespace muster::rendezvous::testing {
namespace {

using namespace std::chrono_literals;

// A store client that cannot reach its server, or gets no answer, says so after this long.
constexpr Duration kConnectPatience = 10s;
constexpr Duration kReplyPatience = 10s;

wire::Dialect dialect_of(Kind kind) {
  switch (kind) {
    case Kind::Modern:
      return wire::Dialect::Modern;
    case Kind::Legacy:
      return wire::Dialect::Legacy;
    case Kind::Hosted:
    case Kind::Extension:
      break;
  }
  return wire::Dialect::Extension;
}

// The blob of a PyTorch reply.
std::optional<std::string> blob_in(std::string_view reply) {
  wire::Reader reader(reply);
  const auto size = reader.integer<std::uint64_t>();
  if (reader.failed() || reader.rest().size() != size) return std::nullopt;
  return std::string(reader.rest());
}

}  // namespace

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::Hosted:
      return "hosted";
    case Kind::Extension:
      return "shared over the extension";
    case Kind::Modern:
      return "shared over a modern store";
    case Kind::Legacy:
      return "shared over a legacy store";
  }
  return "";
}

std::string word_for(Kind kind) {
  switch (kind) {
    case Kind::Hosted:
      return "Hosted";
    case Kind::Extension:
      return "SharedExtension";
    case Kind::Modern:
      return "SharedModern";
    case Kind::Legacy:
      return "SharedLegacy";
  }
  return "";
}

// -- the server -----------------------------------------------------------------------------------

ServerMachine::ServerMachine(sim::Host& host, std::string run_id, std::uint64_t seed)
    : host_(host), run_id_(std::move(run_id)), random_(seed) {}

ServerMachine::~ServerMachine() { stop(); }

void ServerMachine::start() {
  service_ = std::make_unique<rendezvous::Host>(host_.loop(), random_);
  server_ = std::make_unique<store::Server>(host_.loop(), store::ServerOptions());
  server_->add_service(store::ServiceId::Rendezvous, *service_);
  const auto port = server_->listen(host_, {host_.name(), kPort}, "");
  MUSTER_ASSERT(port.has_value());
  spy_ = std::make_unique<tests::Peer>(server_->hub());
  spy_->send(tests::kValidate);
}

void ServerMachine::stop() {
  spy_.reset();
  server_.reset();
  service_.reset();
  seen_pointer_.clear();
}

const State* ServerMachine::hosted_state() const {
  const Group* group = service_ ? service_->find("", run_id_) : nullptr;
  return group == nullptr ? nullptr : &group->state();
}

std::optional<std::string> ServerMachine::read(std::string_view key) {
  const auto check = tests::request(wire::Operation::Check, {key});
  spy_->send(tests::bytes_of(check, wire::Dialect::Modern));
  if (spy_->read() != std::string(1, '\0')) return std::nullopt;
  const auto get = tests::request(wire::Operation::Get, key);
  spy_->send(tests::bytes_of(get, wire::Dialect::Modern));
  return blob_in(spy_->read());
}

const State* ServerMachine::shared_state() {
  if (!is_running()) return nullptr;
  const std::string key = store::wire_key("muster.rendezvous." + run_id_);
  const auto pointer = read(key);
  if (!pointer) return nullptr;
  if (*pointer == seen_pointer_) return &seen_;
  // "muster-rendezvous-1 <version> <signals> <write id>", and the blob is at <version>-<write id>.
  const std::size_t version = pointer->find(' ') + 1;
  const std::size_t signals = pointer->find(' ', version) + 1;
  const std::size_t write = pointer->find(' ', signals) + 1;
  const auto blob = read(key + "/state/" + pointer->substr(version, signals - version - 1) + "-" +
                         pointer->substr(write));
  MUSTER_ASSERT(blob.has_value());
  auto state = decode(*blob);
  MUSTER_ASSERT(state.has_value());
  seen_pointer_ = *pointer;
  seen_ = std::move(*state);
  return &seen_;
}

std::uint64_t ServerMachine::shared_write_count() {
  const auto pointer = read(store::wire_key("muster.rendezvous." + run_id_));
  return pointer ? std::stoull(pointer->substr(pointer->find(' '))) : 0;
}

// -- a node ---------------------------------------------------------------------------------------

Process::Process(sim::Host& host, Parts parts)
    : host_(host),
      parts_(std::move(parts)),
      random_(parts_.seed),
      transport_(host, dialect_of(parts_.kind)) {}

Process::~Process() { calls_.cancel_all(); }

Task<Result<>> Process::open() {
  if (is_open()) co_return Result<>();
  store::TcpStoreOptions options;
  options.endpoint = {"server", kPort};
  options.connect_timeout = kConnectPatience;
  options.reply_timeout = kReplyPatience;
  auto store = co_await store::connect_tcp_store(host_.loop(), transport_, random_, options);
  if (!store) co_return fail(std::move(store.error()));
  store_ = std::move(*store);
  if (parts_.kind == Kind::Hosted) {
    store::ServiceClient* services = store_->services();
    MUSTER_ASSERT(services != nullptr);
    if (parts_.sabotage->services) {
      services_ = parts_.sabotage->services(*services);
      services = services_.get();
    }
    driver_ = make_hosted_driver(host_.loop(), random_, *services, parts_.settings, parts_.node,
                                 HostedDriverOptions());
  } else {
    backend_ = make_store_backend(host_.loop(), *store_, random_, parts_.settings.run_id);
    Backend* backend = backend_.get();
    if (parts_.sabotage->backend) {
      sabotaged_ = parts_.sabotage->backend(*backend);
      backend = sabotaged_.get();
    }
    driver_ = make_shared_driver(host_.loop(), random_, *backend, parts_.settings, parts_.node,
                                 SharedDriverOptions());
  }
  co_return Result<>();
}

Task<Result<Place>> Process::join(TimePoint deadline) {
  auto place = co_await driver_->join(deadline);
  if (place) parts_.ledger->joined(parts_.node, *place);
  co_return place;
}

void Process::begin_join(Duration timeout) {
  joined_.reset();
  calls_.start(run_join(timeout));
}

Task<void> Process::run_join(Duration timeout) {
  auto opened = co_await open();
  if (!opened) {
    joined_ = fail(std::move(opened.error()));
    co_return;
  }
  auto place = co_await join(after(host_.loop().now(), timeout));
  joined_ = std::move(place);
}

void Process::begin_leave() {
  done_.reset();
  joined_.reset();
  calls_.start(run_leave());
}

Task<void> Process::run_leave() {
  auto left = co_await driver_->leave(after(host_.loop().now(), 5s));
  done_ = std::move(left);
}

void Process::begin_close() {
  done_.reset();
  calls_.start(run_close());
}

Task<void> Process::run_close() {
  auto closed = co_await driver_->close(after(host_.loop().now(), parts_.settings.timeouts.close));
  done_ = std::move(closed);
}

// -- all of them ----------------------------------------------------------------------------------

World::World(WorldOptions options)
    : options_(std::move(options)),
      random_(options_.seed),
      network_(loop_, random_, options_.weather),
      ledger_(options_.settings.min_nodes, options_.settings.max_nodes),
      server_(network_.host("server"), options_.settings.run_id, random_.next()) {
  server_.start();
}

World::~World() { processes_.clear(); }

void World::set_clock_ahead(sim::Host& host, Duration ahead) {
  // A second in which its clock runs so much faster.
  host.loop().set_drift(std::chrono::duration_cast<std::chrono::microseconds>(ahead).count());
  run_for(1s);
  host.loop().set_drift(0);
}

Process& World::add(std::string_view host_name) {
  Node node;
  node.addr = host_name;
  node.pid = ++last_pid_;
  node.nonce = random_.next();
  return add(host_name, options_.settings, node);
}

Process& World::add(std::string_view host_name, const Settings& settings, const Node& node) {
  sim::Host& host = network_.host(host_name);
  if (!host.is_up()) network_.restart(host);
  const Process::Parts parts{options_.kind,  settings,           node,
                             random_.next(), &options_.sabotage, &ledger_};
  return *processes_.emplace_back(std::make_unique<Process>(host, parts));
}

void World::kill(Process& process, sim::Crash how) {
  network_.crash(process.host(), how);
  std::erase_if(processes_, [&](const auto& owned) { return owned.get() == &process; });
}

void World::kill_server(sim::Crash how) {
  network_.crash(server_.host(), how);
  server_.stop();
  ledger_.store_forgot();
}

void World::restart_server() {
  network_.restart(server_.host());
  server_.start();
}

const State& World::state() {
  static const State kNothing;
  const State* state =
      options_.kind == Kind::Hosted ? server_.hosted_state() : server_.shared_state();
  return state == nullptr ? kNothing : *state;
}

void World::look() {
  if (spectator_) spectator_();
  if (server_.is_running()) ledger_.saw(state(), options_.kind == Kind::Hosted);
}

bool World::run_until(const std::function<bool()>& reached, Duration limit) {
  return loop_.run_until(
      [&] {
        look();
        return reached();
      },
      loop_.now() + limit);
}

void World::run_for(Duration length) {
  run_until([] { return false; }, length);
}

bool World::run_until_all_are_in(Duration limit) {
  return run_until(
      [&] {
        return std::all_of(processes_.begin(), processes_.end(),
                           [](const auto& process) { return process->is_in(); });
      },
      limit);
}

}  // namespace muster::rendezvous::testing
