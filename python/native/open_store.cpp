#include "muster/store/file_store.h"
#include "muster/store/memory_store.h"
#include "muster/store/prefix_store.h"
#include "muster/store/tcp_store.h"
#include "python/native/interpreter.h"
#include "python/native/store.h"

#include <fmt/format.h>

#include <chrono>
#include <map>
#include <sys/types.h>
#include <unistd.h>

namespace muster::python {
namespace {

// PyTorch's hosts look as often.
constexpr Duration kWorkerCountInterval = std::chrono::milliseconds(10);

using Opened = Result<std::shared_ptr<HeldStore>>;

// Of the loop: the servers that several stores of this process may share, by process and port; a
// forked child still has the entries of its parent.
std::map<std::pair<pid_t, int>, std::weak_ptr<backends::HostedStore>>& shared_servers() {
  static std::map<std::pair<pid_t, int>, std::weak_ptr<backends::HostedStore>> servers;
  return servers;
}

Result<std::shared_ptr<backends::HostedStore>> serve(LoopThread& thread,
                                                     const TcpRequest& request) {
  const pid_t process = ::getpid();
  if (request.shares_server) {
    const auto found = shared_servers().find({process, request.port});
    if (found != shared_servers().end()) {
      if (auto server = found->second.lock()) return server;
    }
  }
  auto started = backends::HostedStore::start(thread.loop(), thread.random(), thread.transport(),
                                              {"", request.port});
  if (!started) return fail(started.error());
  std::shared_ptr<backends::HostedStore> server = std::move(*started);
  if (request.shares_server) shared_servers()[{process, server->port()}] = server;
  return server;
}

Task<Result<>> wait_for_workers(LoopThread& thread, store::TcpStore& store, std::int64_t wanted,
                                Duration timeout) {
  const TimePoint deadline = after(thread.loop().now(), timeout);
  for (;;) {
    const auto count = co_await store.worker_count();
    if (!count) co_return fail(count.error());
    if (*count >= wanted) co_return Result<>();
    const TimePoint now = thread.loop().now();
    if (now >= deadline) {
      co_return fail(ErrorKind::Timeout,
                     fmt::format("{} of {} workers have come to the store within {}", *count,
                                 wanted, describe(timeout)));
    }
    const TimePoint again = std::min(deadline, after(now, kWorkerCountInterval));
    co_await sleep_until(thread.loop(), again);
  }
}

Task<Opened> open_tcp(LoopThread& thread, TcpRequest request) {
  auto held = std::make_shared<HeldStore>();
  if (request.hosts) {
    auto server = serve(thread, request);
    if (!server) co_return fail(server.error());
    held->server = std::move(*server);
    request.port = held->server->port();
    request.host = "localhost";  // whether or not the name it was given is known here
  }
  store::TcpStoreOptions options;
  options.endpoint = {request.host, request.port};
  options.connect_timeout = request.timeout;
  options.count_as_worker = request.worker_count.has_value();
  auto connected = co_await store::connect_tcp_store(thread.loop(), thread.transport(),
                                                     thread.random(), options);
  if (!connected) co_return fail(connected.error());
  std::shared_ptr<store::TcpStore> store = std::move(*connected);
  if (request.hosts && request.worker_count) {
    const auto all =
        co_await wait_for_workers(thread, *store, *request.worker_count, request.timeout);
    if (!all) co_return fail(all.error());
  }
  held->port = request.port;
  held->store = std::move(store);
  co_return held;
}

Task<Opened> open_file(LoopThread& thread, std::string path) {
  store::FileStoreOptions options;
  options.path = std::move(path);
  auto made = store::make_file_store(thread.loop(), thread.random(), std::move(options));
  if (!made) co_return fail(made.error());
  auto held = std::make_shared<HeldStore>();
  held->store = std::move(*made);
  co_return held;
}

Task<Opened> open_memory(LoopThread& thread) {
  auto held = std::make_shared<HeldStore>();
  held->store = store::make_memory_store(thread.loop());
  co_return held;
}

Task<Opened> open_prefix(std::string prefix, std::shared_ptr<HeldStore> inner) {
  auto held = std::make_shared<HeldStore>();
  held->store = store::make_prefix_store(std::move(prefix), *inner->store);
  held->foundation = std::move(inner);
  co_return held;
}

template <typename Make>
std::shared_ptr<StoreHandle> opened_by(LoopThread& thread, const Make& make) {
  return std::make_shared<StoreHandle>(thread, value_or_raise(thread.run(make)));
}

}  // namespace

// A server has let go of its port when this returns, so that whoever waits for that can have it.
StoreHandle::~StoreHandle() {
  // In a forked child there is no loop on which it could go.
  if (!thread_.runs_here()) {
    new std::shared_ptr<HeldStore>(std::move(held_));
    return;
  }
  const bool serves = held_->server != nullptr;
  if (!serves) {
    thread_.do_there_soon([held = std::move(held_)]() mutable { held.reset(); });
    return;
  }
  const Unlocked unlocked;
  thread_.do_there([this] { held_.reset(); });
}

std::shared_ptr<StoreHandle> open_tcp_store(const TcpRequest& request) {
  LoopThread& thread = LoopThread::of_process();
  return opened_by(thread, [&] { return open_tcp(thread, request); });
}

std::shared_ptr<StoreHandle> open_file_store(std::string path) {
  LoopThread& thread = LoopThread::of_process();
  return opened_by(thread, [&] { return open_file(thread, std::move(path)); });
}

std::shared_ptr<StoreHandle> open_memory_store() {
  LoopThread& thread = LoopThread::of_process();
  return opened_by(thread, [&] { return open_memory(thread); });
}

std::shared_ptr<StoreHandle> open_prefix_store(std::string prefix, const StoreHandle& inner) {
  return opened_by(inner.thread(), [&] { return open_prefix(std::move(prefix), inner.held()); });
}

}  // namespace muster::python
