#include "muster/store/extension_client.h"

#include "muster/base/log.h"
#include "muster/store/extension_reply.h"

#include <fmt/format.h>

#include <utility>

namespace muster::store {

// A pop whose caller is gone. Owned by the client until its reply has come.
class ExtensionClient::AbandonedPop final : public ReplySink {
 public:
  AbandonedPop(ExtensionClient& client, ExtensionLink& link, std::uint32_t id, std::string queue)
      : client_(client), link_(link), id_(id), queue_(std::move(queue)) {}

  void on_reply(const wire::Reply& reply) override {
    link_.forget(id_, false);
    if (!wire::error_of(reply)) {
      const auto item = decode_optional(reply.body);
      if (item && *item) client_.push_back(queue_, **item);
    }
    leave();
  }
  void on_lost(const std::string&, bool) override { leave(); }

 private:
  void leave() {
    client_.abandoned_.remove_if([&](const auto& entry) { return entry.get() == this; });
  }

  ExtensionClient& client_;
  ExtensionLink& link_;
  const std::uint32_t id_;
  const std::string queue_;
};

namespace {

constexpr Duration kLongLoss = std::chrono::seconds(2);

// A coroutine that needs a connection.
class Arrival final : public ConnectionWaiter {
 public:
  explicit Arrival(Loop& loop) : outcome(loop) {}
  void on_connected() override { outcome.set(Result<>()); }
  void on_given_up(const Error& error) override { outcome.set(fail(error)); }

  Oneshot<Result<>> outcome;
};

}  // namespace

ExtensionClient::ExtensionClient(ClientContext context, std::unique_ptr<Channel> channel)
    : context_(std::move(context)) {
  attach(std::move(channel));
}

ExtensionClient::~ExtensionClient() = default;

Error ExtensionClient::no_connection() const {
  return {ErrorKind::Unavailable,
          fmt::format("the connection to the store at {} is lost and not restored yet",
                      net::describe(context_.options.endpoint))};
}

void ExtensionClient::await_connection(ConnectionWaiter& waiter) {
  waiter.place_ = line_.insert(line_.end(), &waiter);
  waiter.line_ = &line_;
  if (given_up_) {
    // The last reconnecting failed; whoever comes now starts another round.
    given_up_.reset();
    start_reconnecting();
  }
}

Task<Result<>> ExtensionClient::connected(TimePoint deadline) {
  if (link() != nullptr) co_return Result<>();
  Arrival arrival(context_.loop);
  Timer timer(context_.loop, [&] { arrival.outcome.set(fail(no_connection())); });
  timer.set(deadline);
  await_connection(arrival);
  co_return co_await arrival.outcome;
}

void ExtensionClient::attach(std::unique_ptr<Channel> channel) {
  link_ = std::make_shared<ExtensionLink>(context_.loop, channel->release(), [this] { lost(); });
  for (ConnectionFollower* follower : followers_) follower->on_new_connection();
  while (!line_.empty()) {
    ConnectionWaiter& first = *line_.front();
    first.leave_line();
    first.on_connected();
  }
}

void ExtensionClient::lost() {
  link_.reset();
  start_reconnecting();
}

Task<void> ExtensionClient::reconnect() {
  const TimePoint deadline = after(now(), context_.options.connect_timeout);
  // A short loss is nobody's business; of a long one somebody may want to know.
  Timer warning(context_.loop, [this] {
    log::warn("store", "the store at {} has been out of reach for {}, trying on",
              net::describe(context_.options.endpoint), muster::describe(kLongLoss));
  });
  warning.set(after(now(), kLongLoss));
  auto opened = co_await open_connection(context_, deadline);
  if (opened && opened->dialect != wire::Dialect::Extension) {
    opened = fail(ErrorKind::Closed, fmt::format("the store at {} is no longer a Muster server",
                                                 net::describe(context_.options.endpoint)));
  }
  if (opened) {
    attach(std::move(opened->channel));
    co_return;
  }
  given_up_ = opened.error();
  // Only those who are in line now: they may come again.
  std::list<ConnectionWaiter*> told;
  told.swap(line_);
  for (ConnectionWaiter* waiter : told) waiter->line_ = &told;
  while (!told.empty()) {
    ConnectionWaiter& first = *told.front();
    first.leave_line();
    first.on_given_up(opened.error());
  }
  const auto followers = followers_;
  for (ConnectionFollower* follower : followers) follower->on_no_connection(opened.error());
}

void ExtensionClient::abandon_pop(ExtensionLink& link, std::uint32_t id, std::string queue) {
  auto pop = std::make_unique<AbandonedPop>(*this, link, id, std::move(queue));
  if (link.hand_over(id, *pop)) {
    abandoned_.push_back(std::move(pop));
  } else {
    link.forget(id, false);  // it broke and has not told anybody yet; the call must not be told
  }
}

void ExtensionClient::push_back(std::string_view queue, std::string_view item) {
  ExtensionLink* const usable = link();
  if (usable == nullptr) return;
  wire::Request request;
  request.operation = wire::Operation::QueuePush;
  request.key = queue;
  request.value = item;
  usable->tell(request);
}

}  // namespace muster::store
