#include "muster/backends/inspector.h"

#include "muster/backends/c10d.h"
#include "muster/backends/etcd.h"
#include "muster/etcd/backend.h"
#include "muster/rendezvous/backend.h"
#include "muster/rendezvous/endpoint.h"
#include "muster/rendezvous/host_protocol.h"
#include "muster/rendezvous/options.h"
#include "muster/rendezvous/rules.h"
#include "muster/rendezvous/sightings.h"
#include "muster/rendezvous/state_codec.h"
#include "muster/rendezvous/store_backend.h"
#include "muster/store/file_store.h"
#include "muster/store/tcp_store.h"

#include <fmt/format.h>

#include <sys/stat.h>
#include <utility>

namespace muster::backends {
namespace {

using namespace rendezvous;

constexpr int kWritesMax = 1000;

// A run that its server hosts.
class HostedInspector final : public Inspector {
 public:
  HostedInspector(Loop& loop, std::unique_ptr<store::TcpStore> client, std::string run_id,
                  Duration timeout)
      : loop_(loop), client_(std::move(client)), run_id_(std::move(run_id)), timeout_(timeout) {}

  Task<Result<Snapshot>> snapshot() override { return ask(Said::Kind::Show); }

  Task<Result<>> wait_change(TimePoint deadline) override {
    if (!talk_) co_return fail(ErrorKind::Unavailable, "not connected");
    auto message = co_await talk_->next(deadline);
    if (message || message.error().kind == ErrorKind::Timeout) co_return Result<>();
    talk_.reset();
    co_return fail(std::move(message.error()));
  }

  Task<Result<>> close() override {
    auto snapshot = co_await ask(Said::Kind::Close);
    if (!snapshot) co_return fail(std::move(snapshot.error()));
    co_return Result<>();
  }

 private:
  Task<Result<Snapshot>> ask(Said::Kind kind) {
    if (!talk_) {
      Hello hello;
      hello.run_id = run_id_;
      hello.observes = true;
      auto talk = co_await client_->services()->open(store::ServiceId::Rendezvous, encode(hello));
      if (!talk) co_return fail(std::move(talk.error()));
      talk_ = std::move(*talk);
    }
    Said said;
    said.kind = kind;
    talk_->say(encode(said));
    const TimePoint deadline = after(loop_.now(), timeout_);
    for (;;) {
      auto message = co_await talk_->next(deadline);
      if (!message) {
        talk_.reset();
        co_return fail(std::move(message.error()));
      }
      auto told = decode_told(*message);
      if (!told) co_return fail(std::move(told.error()));
      if (told->kind == Told::Kind::Snapshot) co_return std::move(told->snapshot);
    }
  }

  Loop& loop_;
  std::unique_ptr<store::TcpStore> client_;
  const std::string run_id_;
  const Duration timeout_;
  std::unique_ptr<store::Talk> talk_;
};

// A run whose state its nodes compare and set.
class SharedInspector final : public Inspector {
 public:
  SharedInspector(Loop& loop, std::shared_ptr<void> owner, std::unique_ptr<Backend> backend,
                  Random& random)
      : loop_(loop), owner_(std::move(owner)), backend_(std::move(backend)), random_(random) {}

  Task<Result<Snapshot>> snapshot() override {
    auto stored = co_await backend_->get_state();
    if (!stored) co_return fail(std::move(stored.error()));
    token_.reset();
    if (!*stored) co_return Snapshot();
    token_ = (*stored)->token;
    auto state = decode((*stored)->blob);
    if (!state) co_return fail(std::move(state.error()));
    // When a last call ends, only those who have seen it begin can tell.
    state->deadline.reset();
    Snapshot snapshot = snapshot_of(*state, loop_.now());
    auto signs = co_await add_signs(snapshot);
    if (!signs) co_return fail(std::move(signs.error()));
    co_return snapshot;
  }

  Task<Result<>> wait_change(TimePoint deadline) override {
    auto waited = co_await backend_->wait_signal(token_, true, deadline);
    if (!waited) co_return fail(std::move(waited.error()));
    co_return Result<>();
  }

  Task<Result<>> close() override {
    for (int attempt = 0; attempt < kWritesMax; ++attempt) {
      auto stored = co_await backend_->get_state();
      if (!stored) co_return fail(std::move(stored.error()));
      State state;
      std::optional<Token> token;
      if (*stored) {
        auto decoded = decode((*stored)->blob);
        if (!decoded) co_return fail(std::move(decoded.error()));
        state = std::move(*decoded);
        token = (*stored)->token;
      }
      if (state.closed) co_return Result<>();
      if (state.birth == 0) state.birth = random_.next() | 1;
      state.closed = true;
      auto written = co_await backend_->set_state(encode(state), token, true);
      if (!written) co_return fail(std::move(written.error()));
      if (*written && (*written)->was_set) co_return Result<>();
    }
    co_return fail(ErrorKind::Conflict, "the run's state changes too fast to be closed; try again");
  }

 private:
  // Without leases, a sign says nothing until it has been seen to change: left open then.
  Task<Result<>> add_signs(Snapshot& snapshot) {
    if (!backend_->has_leases()) co_return Result<>();
    std::vector<Snapshot::Entry*> entries;
    std::vector<std::string> names;
    for (auto* list : {&snapshot.members, &snapshot.waiting, &snapshot.spare}) {
      for (Snapshot::Entry& entry : *list) {
        entries.push_back(&entry);
        names.push_back(sign_name(entry.node));
      }
    }
    if (names.empty()) co_return Result<>();
    auto signs = co_await backend_->signs(std::move(names));
    if (!signs) co_return fail(std::move(signs.error()));
    for (std::size_t index = 0; index < entries.size(); ++index) {
      entries[index]->connected = (*signs)[index].present;
    }
    co_return Result<>();
  }

  Loop& loop_;
  std::shared_ptr<void> owner_;  // of what the backend uses
  std::unique_ptr<Backend> backend_;
  Random& random_;
  std::optional<Token> token_;
};

using Made = Result<std::unique_ptr<Inspector>>;

Task<Made> inspect_tcp(net::EpollLoop& loop, Machine& machine, Random& random,
                       Parameters parameters) {
  const int default_port = parameters.backend == "muster" ? kMusterPort : kC10dPort;
  auto endpoint = parse_endpoint(parameters.endpoint, default_port);
  if (!endpoint) co_return fail(std::move(endpoint.error()));
  const auto timeout = duration_option(parameters, "read_timeout");
  if (!timeout) co_return fail(timeout.error());
  store::TcpStoreOptions options;
  options.endpoint = {endpoint->host, endpoint->port};
  options.connect_timeout = *timeout;
  options.reply_timeout = *timeout;
  auto client =
      co_await store::connect_tcp_store(loop, machine.transport(), random, std::move(options));
  if (!client) co_return fail(std::move(client.error()));
  if ((*client)->services() != nullptr) {
    co_return std::make_unique<HostedInspector>(loop, std::move(*client), parameters.run_id,
                                                *timeout);
  }
  std::shared_ptr<store::TcpStore> store = std::move(*client);
  auto backend = make_store_backend(loop, *store, random, parameters.run_id);
  co_return std::make_unique<SharedInspector>(loop, std::move(store), std::move(backend), random);
}

Made inspect_file(net::EpollLoop& loop, Random& random, const Parameters& parameters) {
  struct stat found {};
  if (::stat(parameters.endpoint.c_str(), &found) != 0) {
    return fail(ErrorKind::Unavailable, fmt::format("there is no file '{}'", parameters.endpoint));
  }
  store::FileStoreOptions options;
  options.path = parameters.endpoint;
  auto made = store::make_file_store(loop, random, std::move(options));
  if (!made) return fail(std::move(made.error()));
  std::shared_ptr<store::Store> store = std::move(*made);
  auto backend = make_store_backend(loop, *store, random, parameters.run_id);
  return std::make_unique<SharedInspector>(loop, std::move(store), std::move(backend), random);
}

Task<Made> inspect_etcd(net::EpollLoop& loop, Random& random, Parameters parameters) {
  auto options = etcd_options(parameters);
  if (!options) co_return fail(std::move(options.error()));
  auto connected = co_await etcd::connect(loop, random, std::move(*options));
  if (!connected) co_return fail(std::move(connected.error()));
  std::shared_ptr<etcd::Client> client = std::move(*connected);
  auto backend = etcd::make_backend(*client, parameters.run_id);
  co_return std::make_unique<SharedInspector>(loop, std::move(client), std::move(backend), random);
}

}  // namespace

Task<Result<std::unique_ptr<Inspector>>> make_inspector(net::EpollLoop& loop, Machine& machine,
                                                        Random& random, Parameters parameters) {
  if (parameters.run_id.empty()) co_return fail(ErrorKind::Invalid, "the run id is empty");
  auto checked = check_options(parameters.backend, parameters.config);
  if (!checked) co_return fail(std::move(checked.error()));
  if (parameters.backend == "file") co_return inspect_file(loop, random, parameters);
  if (parameters.backend == "c10d") {
    const auto type = word_option(parameters, "store_type");
    if (!type) co_return fail(type.error());
    if (*type == "file") co_return inspect_file(loop, random, parameters);
  }
  if (parameters.backend == "c10d" || parameters.backend == "muster") {
    co_return co_await inspect_tcp(loop, machine, random, std::move(parameters));
  }
  if (parameters.backend == "etcd" || parameters.backend == "etcd-v2") {
    co_return co_await inspect_etcd(loop, random, std::move(parameters));
  }
  co_return fail(
      ErrorKind::Invalid,
      fmt::format("backend '{}' keeps no state that could be looked at; the backends that "
                  "do are c10d, muster, file and etcd",
                  parameters.backend));
}

}  // namespace muster::backends
