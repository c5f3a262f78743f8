// Client: etcd v3 over its HTTP/JSON gateway (etcd 3.4 and later).
//
// Knows several members and talks to one of them. When that one cannot be reached, hangs, or has no
// leader, it goes to the next, with back-off once all have been tried. Reads are linearizable. A
// request that may have been carried out is sent again only where that can do no harm; see `txn`.
//
// Errors: Unavailable when no member could serve the request for `retry_timeout`; Invalid when etcd
// refuses it for good (rights, sizes, certificates); Conflict when what it refers to is not there
// (a lease, a revision that was compacted); Closed for a write that may or may not have taken
// effect.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/random.h"
#include "muster/base/task.h"
#include "muster/etcd/http.h"
#include "muster/etcd/messages.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/transport.h"
#include "muster/rendezvous/turnstile.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace muster::etcd {

inline constexpr int kDefaultPort = 2379;

struct Options {
  std::vector<net::Endpoint> endpoints;
  // Before every key of Muster. A "/" at its end counts for nothing.
  std::string prefix = "/muster";
  bool tls = false;
  TlsFiles tls_files;
  // Empty: without authentication.
  std::string user;
  std::string password;
  // How long one member may take to answer before another is asked.
  Duration request_timeout = std::chrono::seconds(3);
  // How long to go on trying while no member answers, before an operation fails.
  Duration retry_timeout = std::chrono::seconds(30);
  // A member that watches hang on is asked for a sign of life when it was silent for this long.
  Duration probe_interval = std::chrono::seconds(5);
  BackoffOptions backoff;
};

class Client;

// A stream of changes that survives the member it comes from. Owned by the watcher; must not
// outlive the client.
class Watcher {
 public:
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  struct Batch {
    // What we want to know is no longer known: read again, and begin a new watch from there.
    bool compacted = false;
    std::vector<Event> events;
  };
  // The next changes, in the order of their revisions; not empty unless compacted.
  // After an error it may be called again and goes on where it was. Destroying the task loses
  // nothing as long as nothing stands between it and the one who keeps the result: with_deadline
  // does.
  Task<Result<Batch>> next();

 private:
  friend class Client;
  Watcher(Client& client, WatchRange range);
  // Makes one step: opens the stream or reads one message. False if the stream broke, then
  // `problem_` says why.
  Task<Result<bool>> step(Batch& batch);
  Task<Result<bool>> open();
  // Waits until a whole line is unread. Takes nothing, so that destroying it loses nothing.
  Task<Result<>> await_line();
  // Why the stream ended.
  tl::unexpected<Error> broken();
  Result<bool> take(WatchMessage message, Batch& batch);
  void close();

  Client& client_;
  WatchRange range_;  // starts where we are
  std::list<Watcher*>::iterator place_;
  std::size_t endpoint_ = 0;
  std::unique_ptr<HttpExchange> exchange_;
  std::string token_;         // that the stream was opened with
  std::string unread_;        // of the stream
  bool is_created_ = false;   // the member has said that it watches
  bool was_refused_ = false;  // for want of rights, with the present token
  int failure_count_ = 0;     // in a row
  TimePoint failing_since_ = kNever;
  std::string problem_;
};

// Owned by the program, on its loop. Outlives its watchers, backends and stores.
class Client {
 public:
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  net::EpollLoop& loop() const { return loop_; }
  Random& random() const { return random_; }
  const Options& options() const { return options_; }
  // The options' prefix without "/" at its end.
  const std::string& prefix() const { return prefix_; }
  // The endpoints, for people.
  const std::string& name() const { return name_; }
  // The member in use.
  const net::Endpoint& endpoint() const { return options_.endpoints[current_]; }
  // The latest revision that an answer came from.
  std::int64_t revision() const { return revision_; }

  Task<Result<RangeReply>> range(Range range);
  // All keys of the range at one revision, however many, by key.
  Task<Result<RangeReply>> range_all(Range range);

  // What to do when an attempt may have been carried out.
  enum class Repeat {
    Never,    // fail with Closed
    Allowed,  // send it again: done twice is as good as done once, or can be told from it
  };
  Task<Result<TxnReply>> txn(Txn txn, Repeat repeat);

  // The writes to `key` after one revision and up to another (0: now), oldest first.
  Task<Result<std::vector<KeyValue>>> history(std::string key, std::int64_t after,
                                              std::int64_t until);

  // The caller chooses the id at random; granting one twice is granting it once. The lease may last
  // longer than asked for.
  Task<Result<LeaseReply>> grant_lease(std::int64_t id, std::int64_t ttl_s);
  // ttl_s is 0 if there is no such lease.
  Task<Result<LeaseReply>> keep_alive(std::int64_t id);
  // Also succeeds if there is no such lease.
  Task<Result<>> revoke_lease(std::int64_t id);
  std::int64_t new_lease_id();

  // One range on one connection: the gateway reads no more of a request once it has begun to answer
  // it. Nothing happens before `next` is called.
  std::unique_ptr<Watcher> watch(WatchRange range);

  // Asks the member in use for its version.
  Task<Result<StatusReply>> status();

 private:
  friend class Watcher;
  friend Task<Result<std::unique_ptr<Client>>> connect(net::EpollLoop& loop, Random& random,
                                                       Options options);
  struct Reply {
    std::string body;
    bool repeated = false;
  };
  // What one request to one member came to.
  struct Attempt {
    bool done = false;
    std::string body;
    Verdict verdict;  // when not done
    bool is_misconfigured = false;
  };
  struct Progress;

  Client(net::EpollLoop& loop, Random& random, Options options);
  // `path` is a literal.
  Task<Result<Reply>> call(std::string_view path, std::string body, Repeat repeat);
  Task<Attempt> ask(std::size_t endpoint, std::string_view path, std::string body);
  Task<Attempt> ask_with_token(std::size_t endpoint, std::string_view path, std::string body);
  // Gets a token from the member, unless there is one by now.
  Task<Attempt> authenticate(std::size_t endpoint);
  HttpRequest request_to(std::size_t endpoint, std::string_view path, std::string body) const;
  bool needs_token() const { return !options_.user.empty() && !auth_is_off_ && token_.empty(); }
  void drop_token(const std::string& used);
  void heard_from(std::size_t endpoint);
  void saw_revision(std::int64_t revision);
  // Makes another member the current one, if this one still is.
  void leave(std::size_t endpoint, std::string_view problem);
  // Asks members that watches hang on for signs of life, and breaks the watches of those that give
  // none. Ends when nobody watches.
  Task<void> probe();
  void start_probing();
  void break_watchers(std::size_t endpoint, const std::string& problem);

  net::EpollLoop& loop_;
  Random& random_;
  const Options options_;
  const std::string prefix_;
  const std::string name_;
  Http http_;
  std::size_t current_ = 0;             // the endpoint in use
  std::vector<TimePoint> heard_times_;  // when each endpoint last gave a sign of life
  std::int64_t revision_ = 0;
  std::string token_;
  bool auth_is_off_ = false;
  rendezvous::Turnstile authenticating_;
  std::list<Watcher*> watchers_;
  bool is_probing_ = false;
  TaskScope scope_;  // last
};

// Reaches a member and checks the user. Requires: `loop` and `random` outlive the client.
Task<Result<std::unique_ptr<Client>>> connect(net::EpollLoop& loop, Random& random,
                                              Options options);

}  // namespace muster::etcd
