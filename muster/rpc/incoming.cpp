#include "muster/rpc/incoming.h"

#include "muster/base/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace muster::rpc {
namespace {

// How long a stranger may take to say who it is.
constexpr Duration kGreetingMax = std::chrono::seconds(10);
constexpr std::size_t kCancelledMax = 1024;

// In a time that does not depend on where they differ.
bool are_equal(std::string_view left, std::string_view right) {
  if (left.size() != right.size()) return false;
  unsigned char difference = 0;
  for (std::size_t index = 0; index < left.size(); ++index) {
    difference |= static_cast<unsigned char>(left[index] ^ right[index]);
  }
  return difference == 0;
}

}  // namespace

std::int64_t strangers_max_of(std::uint64_t descriptors_max) {
  const auto most = static_cast<std::uint64_t>(kStrangersMax);
  return static_cast<std::int64_t>(std::clamp<std::uint64_t>(descriptors_max / 4, 1, most));
}

void Cancelled::add(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  // Most of these were answered when the word came; the oldest of many certainly were.
  if (ids_.size() >= kCancelledMax) ids_.erase(ids_.begin());
  ids_.insert(id);
  has_any_ = true;
}

void Cancelled::remove(std::int64_t id) {
  if (!has_any_) return;
  const std::lock_guard lock(mutex_);
  ids_.erase(id);
}

bool Cancelled::contains(std::int64_t id) const {
  if (!has_any_) return false;
  const std::lock_guard lock(mutex_);
  return ids_.contains(id);
}

class Incoming::Back final : public Responder::Back {
 public:
  Back(std::shared_ptr<Reception> reception, std::shared_ptr<Link> link,
       std::shared_ptr<const WorkerInfo> from, std::shared_ptr<Cancelled> cancelled,
       std::shared_ptr<Backlog> backlog, ConnectionNumber connection, std::int64_t id)
      : reception_(std::move(reception)),
        link_(std::move(link)),
        from_(std::move(from)),
        cancelled_(std::move(cancelled)),
        backlog_(std::move(backlog)),
        connection_(connection),
        id_(id) {
    ++reception_->active_count;
  }
  ~Back() override {
    begins();
    cancelled_->remove(id_);
    --reception_->active_count;
  }

  void respond(Message response) override {
    response.id = id_;
    if (!reception_->is_open) {
      log::warn("rpc", "{} has stopped and does not answer {} any more",
                reception_->self.describe(), from_->describe());
      return;
    }
    if (reception_->faults && go_wrong(response)) return;
    send(*link_, std::move(response));
  }
  bool is_cancelled() const override { return link_->is_lost() || cancelled_->contains(id_); }
  const DeviceDirectory* devices() const override { return reception_->devices.get(); }
  ConnectionNumber connection() const override { return connection_; }
  void waits(std::size_t bytes) override {
    if (waiting_bytes_) return;
    waiting_bytes_ = bytes;
    backlog_->add(bytes);
  }
  void begins() override {
    if (waiting_bytes_) backlog_->remove(*std::exchange(waiting_bytes_, std::nullopt));
  }

 private:
  static void send(Link& link, Message response) {
    const std::int64_t id = response.id;
    auto sent = link.send(std::move(response));
    if (sent || sent.error().kind != ErrorKind::Invalid) return;
    // It does not fit into a frame, but this does.
    Message refused{MessageType::Exception, id, encode_failure("", sent.error().message), {}};
    [[maybe_unused]] const auto told = link.send(std::move(refused));
  }

  // On purpose. Whether the response is dealt with.
  bool go_wrong(Message& response) {
    const auto verdict = reception_->faults->decide(response, from_->name());
    if (!verdict) return false;
    switch (verdict->action) {
      case FaultAction::Drop:
        return true;
      case FaultAction::Delay:
      case FaultAction::Reorder: {
        auto late = std::make_shared<Message>(std::move(response));
        reception_->later(verdict->length, [link = link_, late] { send(*link, std::move(*late)); });
        return true;
      }
      case FaultAction::Corrupt:
        response.payload[verdict->position] ^= 1;
        return false;
      case FaultAction::Disconnect:
        link_->give_up("it was cut on purpose");
        return true;
      case FaultAction::Fail:
      case FaultAction::Duplicate:
        break;  // only for requests
    }
    return false;
  }

  std::shared_ptr<Reception> reception_;
  std::shared_ptr<Link> link_;
  std::shared_ptr<const WorkerInfo> from_;
  std::shared_ptr<Cancelled> cancelled_;
  std::shared_ptr<Backlog> backlog_;
  std::optional<std::size_t> waiting_bytes_;  // while it stands in line
  ConnectionNumber connection_;
  std::int64_t id_;
};

Incoming::Incoming(std::shared_ptr<Reception> reception, std::unique_ptr<Stream> stream,
                   std::string where, ConnectionNumber number, std::function<void()> ended)
    : reception_(std::move(reception)),
      where_(std::move(where)),
      number_(number),
      ended_(std::move(ended)),
      opened_at_(reception_->loop->now()),
      heard_at_(opened_at_) {
  LinkOptions options = reception_->link;
  options.peer = where_;
  options.reads_while_full = false;
  link_ = Link::open(*reception_->loop, std::move(stream), std::move(options), *this);
  link_->set_limits(kHelloLimits);
  backlog_ = std::make_shared<Backlog>(reception_->backlog,
                                       [weak = std::weak_ptr<Link>(link_)](bool is_too_long) {
                                         const auto link = weak.lock();
                                         if (link) is_too_long ? link->hold() : link->release();
                                       });
  reception_->count_stranger(1);
}

Incoming::~Incoming() {
  link_->close();
  if (!from_) reception_->count_stranger(-1);
}

void Incoming::on_message(Link& link, Message message) {
  if (!from_) return greet(link, message);
  if (message.type == kSignOfLife) return;
  if (message.type == kCancel) return cancelled_->add(message.id);
  if (!is_request(message.type)) return link.give_up("it sent an answer where requests belong");
  const std::int64_t id = message.id;
  reception_->handler->on_request(
      {std::move(message), from_,
       Responder(std::make_unique<Back>(reception_, link.shared_from_this(), from_, cancelled_,
                                        backlog_, number_, id))});
}

void Incoming::greet(Link& link, const Message& message) {
  // It speaks only once before it is answered.
  if (std::exchange(has_greeted_, true)) return link.give_up("it did not wait to be let in");
  const auto hello = decode_hello(message);
  if (!hello) return refuse(link, hello.error().message);
  if (!are_equal(hello->job, reception_->job)) return refuse(link, "it belongs to another job");
  if (hello->to_incarnation != reception_->incarnation) {
    return refuse(link, fmt::format("it looks for a worker that was here before {}",
                                    reception_->self.describe()));
  }
  tasks_.start(let_in(link.shared_from_this(), *hello));
}

Task<void> Incoming::let_in(std::shared_ptr<Link> link, Hello hello) {
  std::string problem;
  auto from = WorkerInfo::create_member(hello.from_name, hello.from_id);
  if (!from) {
    problem = from.error().message;
  } else if (reception_->admit) {
    problem = co_await reception_->admit(std::move(hello));
  }
  if (!problem.empty()) {
    refuse(*link, problem);
    co_return;
  }
  from_ = std::make_shared<const WorkerInfo>(*from);
  reception_->count_stranger(-1);
  link->set_limits(reception_->link.limits);
  [[maybe_unused]] const auto sent = link->send({kWelcome, 0, "", {}});
  if (from_->id() != reception_->self.id()) reception_->handler->on_worker_heard(*from_);
}

void Incoming::refuse(Link& link, const std::string& problem) {
  log::warn("rpc", "{} refuses a connection from {}: {}", reception_->self.describe(), where_,
            problem);
  [[maybe_unused]] const auto sent = link.send(refusal(problem));
  link.give_up(problem);
}

void Incoming::on_lost(Link&, std::string reason) {
  if (from_) {
    log::debug("rpc", "{} lost the connection that {} had opened: {}", reception_->self.describe(),
               from_->describe(), reason);
  }
  // Which is the end of this object, too.
  const std::function<void()> ended = std::move(ended_);
  ended();
}

void Incoming::give_place(TimePoint now) {
  if (has_greeted_ || now - opened_at_ < kGreetingMaxWhenFull) return;
  link_->give_up("it said nothing, and others wait");
}

void Incoming::look_after(TimePoint now, Duration silence_max) {
  if (!from_ && now - opened_at_ > kGreetingMax) return link_->give_up("it said nothing");
  const bool has_read = link_->sent_bytes() != said_bytes_;
  const std::uint64_t heard_bytes = link_->received_bytes();
  if (std::exchange(heard_bytes_, heard_bytes) != heard_bytes) {
    heard_at_ = now;
  } else if (link_->is_full()) {
    // Nothing is read from it until it reads.
    if (has_read) heard_at_ = now;
    if (now - heard_at_ > silence_max) return link_->give_up("it does not read its answers");
  } else if (link_->is_held()) {
    heard_at_ = now;
  } else if (now - heard_at_ > silence_max) {
    return link_->give_up("nothing was heard from it");
  }
  if (!has_read && from_ && !link_->is_full()) {
    [[maybe_unused]] const auto sent = link_->send({kSignOfLife, 0, "", {}});
  }
  said_bytes_ = link_->sent_bytes();
}

}  // namespace muster::rpc
