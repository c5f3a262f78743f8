// LocalServer and LocalClient: conversations with a rendezvous::Host inside of one process, for
// tests. What a network does to them is ordered by the test: refuse, break, swallow.
//
// All on one loop. Owned by the test; the server outlives its clients, and those the talks.
#pragma once

#include "muster/base/error.h"
#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/base/task.h"
#include "muster/rendezvous/host.h"
#include "muster/rendezvous/host_protocol.h"
#include "muster/store/service.h"

#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace muster::rendezvous::testing {

class LocalLine;

class LocalServer {
 public:
  LocalServer(Loop& loop, Random& random)
      : loop_(loop), random_(random), host_(std::make_unique<Host>(loop, random)) {}

  Loop& loop() { return loop_; }
  Host& host() { return *host_; }
  const State& state(const std::string& run_id = "run") const {
    static const State none;
    const Group* group = host_->find("", run_id);
    return group == nullptr ? none : group->state();
  }

  void set_up(bool up) {
    up_ = up;
    if (!up) break_all();
  }
  bool up() const { return up_; }
  // All connections break.
  inline void break_all();
  // And everything is forgotten.
  void restart() {
    break_all();
    host_ = std::make_unique<Host>(loop_, random_);
  }

  std::size_t line_count() const { return lines_.size(); }

 private:
  friend class LocalLine;
  Loop& loop_;
  Random& random_;
  bool up_ = true;
  std::set<LocalLine*> lines_;
  std::unique_ptr<Host> host_;
};

// Both ends of one conversation; owned by the client's.
class LocalLine final : public store::Conversation, public store::Talk {
 public:
  // What the two sides have said to each other.
  struct Counts {
    std::size_t said = 0;  // by the client
    std::size_t told = 0;  // by the server
  };

  LocalLine(LocalServer& server, std::list<LocalLine*>& of_client, Counts& counts)
      : server_(server),
        of_client_(of_client),
        counts_(counts),
        unconfirmed_(server.loop(), [this] { cut(); }) {
    of_client_.push_back(this);
    server_.lines_.insert(this);
  }
  ~LocalLine() override {
    leave_server(store::Service::End::Left);
    of_client_.remove(this);
  }

  void open(std::string_view message) {
    ++counts_.said;
    server_.host().opened(*this, "", message);
  }
  // The connection breaks.
  void cut() {
    leave_server(store::Service::End::Lost);
    end({ErrorKind::Unavailable, "the connection broke"});
  }
  // From now on nothing gets through, either way, and nobody is told.
  void swallow() { swallows_ = true; }
  // From now on nothing comes from the server.
  void fall_silent() { is_silent_ = true; }

  // The server's side.
  void say(std::string_view message) override {
    ++counts_.told;
    if (!swallows_ && !is_silent_) queue_.emplace_back(message);
    wake();
  }
  void finish(std::string_view message) override {
    say(message);
    refuse(ErrorKind::Finished, "");
  }
  void refuse(ErrorKind kind, std::string_view reason) override {
    server_.lines_.erase(this);
    end({kind, std::string(reason)});
  }

  // The client's side.
  void say(std::string message) override {
    ++counts_.said;
    if (!ended_ && !swallows_) server_.host().heard(*this, message);
    if (swallows_ && !unconfirmed_.pending())
      unconfirmed_.set(after(server_.loop().now(), patience_));
  }
  void set_patience(Duration patience) override { patience_ = patience; }
  Task<Result<std::string>> next(TimePoint deadline) override {
    if (queue_.empty() && !ended_) {
      Oneshot<bool> news(server_.loop());
      Timer timer(server_.loop(), [&news] { news.set(false); });
      timer.set(deadline);
      const Registration registration(news_, news);
      (void)co_await news;
    }
    if (!queue_.empty()) {
      std::string message = std::move(queue_.front());
      queue_.pop_front();
      co_return message;
    }
    if (ended_) co_return fail(*ended_);
    co_return fail(ErrorKind::Timeout, "nothing was said");
  }

 private:
  class Registration {
   public:
    Registration(Oneshot<bool>*& place, Oneshot<bool>& news) : place_(place) { place_ = &news; }
    ~Registration() { place_ = nullptr; }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;

   private:
    Oneshot<bool>*& place_;
  };

  void leave_server(store::Service::End how) {
    if (server_.lines_.erase(this) > 0) server_.host().ended(*this, how);
  }
  void end(Error error) {
    if (!ended_) ended_ = std::move(error);
    wake();
  }
  void wake() {
    if (news_ != nullptr) news_->set(true);
  }

  LocalServer& server_;
  std::list<LocalLine*>& of_client_;
  Counts& counts_;
  bool swallows_ = false;
  bool is_silent_ = false;
  Duration patience_ = std::chrono::minutes(15);
  Timer unconfirmed_;
  std::deque<std::string> queue_;
  std::optional<Error> ended_;
  Oneshot<bool>* news_ = nullptr;
};

void LocalServer::break_all() {
  while (!lines_.empty()) (*lines_.begin())->cut();
}

class LocalClient final : public store::ServiceClient {
 public:
  explicit LocalClient(LocalServer& server) : server_(server) {}

  Task<Result<std::unique_ptr<store::Talk>>> open(store::ServiceId service,
                                                  std::string message) override {
    (void)service;
    ++open_count_;
    if (!server_.up() || cut_off_) co_return fail(ErrorKind::Unavailable, "connection refused");
    auto line = std::make_unique<LocalLine>(server_, lines_, counts_);
    line->open(message);
    std::unique_ptr<store::Talk> talk = std::move(line);
    co_return talk;
  }

  // The connection breaks; it can be opened again.
  void cut() {
    for (LocalLine* line : std::list<LocalLine*>(lines_)) line->cut();
  }
  // The network is gone, for this node.
  void cut_off(bool off) {
    cut_off_ = off;
    if (off) cut();
  }
  void swallow() {
    for (LocalLine* line : lines_) line->swallow();
  }
  void fall_silent() {
    for (LocalLine* line : lines_) line->fall_silent();
  }
  std::size_t open_count() const { return open_count_; }
  // Including what conversations were opened with.
  std::size_t said_count() const { return counts_.said; }
  std::size_t told_count() const { return counts_.told; }
  bool connected() const { return !lines_.empty(); }

 private:
  LocalServer& server_;
  std::list<LocalLine*> lines_;
  bool cut_off_ = false;
  std::size_t open_count_ = 0;
  LocalLine::Counts counts_;
};

}  // namespace muster::rendezvous::testing
