#include "muster/rpc/link.h"

#include "muster/base/assert.h"
#include "muster/rpc/crowd.h"
#include "muster/rpc/hot_links.h"
#include "muster/rpc/throttle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <iterator>
#include <poll.h>
#include <span>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

constexpr std::size_t kScratchBytes = std::size_t{128} << 10U;
// Of one large buffer at a time, so that other connections get their turn.
constexpr std::size_t kDirectReadBytesMax = std::size_t{4} << 20U;
constexpr int kReadsPerTurnMax = 8;
constexpr std::size_t kPiecesMax = 64;
// A sleep of a thread that reads ends by then, and goes on: so that every clock can represent it.
constexpr Duration kLongNap = std::chrono::hours(1);
// Of small messages that are written together.
constexpr std::size_t kGatheredMax = 32;
// Of buffers that were written and are not destroyed yet, because the thread goes on to write.
constexpr std::size_t kDoneBytesMax = std::size_t{4} << 20U;
constexpr std::string_view kNoMemory = "there is no memory for what is still to be sent over it";

// What is to be written: a head, then buffers.
struct Outgoing {
  std::int64_t id = 0;
  std::string head;
  std::vector<Buffer> buffers;
  std::size_t bytes = 0;
};

class DescriptorWatch final : public StreamWatch {
 public:
  DescriptorWatch(net::EpollLoop& loop, int fd, std::function<void()> ready)
      : watch_(loop, fd, [ready = std::move(ready)](std::uint32_t) { ready(); }) {}
  void want(std::uint32_t events) override { watch_.want(events); }

 private:
  net::FdWatch watch_;
};

thread_local int reading_depth = 0;

std::span<std::byte> scratch() {
  thread_local std::vector<std::byte> memory(kScratchBytes);
  return memory;
}

}  // namespace

struct Link::Output {
  std::mutex mutex;  // guards what follows
  // Whoever writes looks at the first of them without the lock, so only it removes any.
  std::deque<Outgoing> queue;
  std::size_t front_sent_bytes = 0;  // of the first in the queue
  std::size_t queued_bytes = 0;
  bool is_writing = false;
  bool has_news = false;      // for whoever writes: somebody else would have, just now
  bool is_corked = false;     // whoever reads answers several at once, and writes them together
  bool is_gathering = false;  // what is in the queue waits for more, not for room
  std::string failure;        // why nothing can be sent any more
  // Messages whose borrowed memory is wanted back; whoever writes sees to it.
  std::vector<std::int64_t> wanted_back;
  // It has, or it does not write any more.
  std::condition_variable writer_paused;

  std::size_t collect(std::array<iovec, kPiecesMax>& pieces) const;
  // Buffers that were written are moved to `written`: the memory may be the program's, whose
  // destructors must not run with the lock. How many bytes they have.
  std::size_t drop_written(std::size_t bytes, std::vector<Buffer>& written);
  // False if there is not enough memory for the copies. Requires: nobody writes without the lock.
  bool take_over(std::int64_t id);
};

bool Link::Output::take_over(std::int64_t id) {
  return std::ranges::all_of(
      queue, [id](Outgoing& one) { return one.id != id || rpc::take_over(one.buffers); });
}

std::size_t Link::Output::collect(std::array<iovec, kPiecesMax>& pieces) const {
  std::size_t count = 0;
  std::size_t skip = front_sent_bytes;
  const auto add = [&](const void* data, std::size_t size) {
    const std::size_t skipped = std::min(skip, size);
    skip -= skipped;
    if (size == skipped || count == kPiecesMax) return;
    // Nobody writes to it.
    auto* begin = const_cast<std::byte*>(static_cast<const std::byte*>(data)) + skipped;
    pieces[count++] = {begin, size - skipped};
  };
  for (const Outgoing& one : queue) {
    if (count == kPiecesMax) break;
    add(one.head.data(), one.head.size());
    for (const Buffer& buffer : one.buffers) add(buffer.data(), buffer.size());
  }
  return count;
}

std::size_t Link::Output::drop_written(std::size_t bytes, std::vector<Buffer>& written) {
  queued_bytes -= bytes;
  front_sent_bytes += bytes;
  std::size_t dropped = 0;
  while (!queue.empty() && front_sent_bytes >= queue.front().bytes) {
    Outgoing& front = queue.front();
    front_sent_bytes -= front.bytes;
    if (!front.buffers.empty()) dropped += front.bytes;
    std::move(front.buffers.begin(), front.buffers.end(), std::back_inserter(written));
    queue.pop_front();
  }
  return dropped;
}

WatchStream watch_by(net::EpollLoop& loop) {
  return [&loop](Stream& stream, std::function<void()> ready) {
    return std::make_unique<DescriptorWatch>(loop, stream.fd(), std::move(ready));
  };
}

std::shared_ptr<Link> Link::open(Loop& loop, std::unique_ptr<Stream> stream, LinkOptions options,
                                 LinkEvents& events) {
  auto link = std::make_shared<Link>(loop, std::move(stream), std::move(options), events);
  link->watch_ = link->options_.watch(*link->stream_, [raw = link.get()] {
    const auto alive = raw->shared_from_this();
    alive->ready();
  });
  {
    const std::lock_guard lock(link->watching_);
    link->update_watch();
  }
  if (!link->stream_->ask_for_bytes()) link->look_again();
  return link;
}

Link::Link(Loop& loop, std::unique_ptr<Stream> stream, LinkOptions options, LinkEvents& events)
    : loop_(loop),
      events_(events),
      options_(std::move(options)),
      stream_(std::move(stream)),
      output_(std::make_unique<Output>()),
      reader_(options_.limits) {}

// The watch belongs to the loop's thread, which need not be this one.
Link::~Link() { MUSTER_ASSERT(!watch_); }

void Link::close() {
  is_closed_ = true;
  {
    const std::lock_guard lock(watching_);
    watch_.reset();
  }
  {
    const std::lock_guard lock(output_->mutex);
    if (output_->failure.empty()) output_->failure = "the connection was closed";
  }
  stream_->close();
  {
    // Until whoever writes has seen it, and whoever reads.
    std::unique_lock lock(output_->mutex);
    output_->writer_paused.wait(lock, [this] { return !output_->is_writing; });
  }
  const std::lock_guard lock(reading_);
}

std::size_t Link::queued_bytes() const {
  const std::lock_guard lock(output_->mutex);
  return output_->queued_bytes;
}

Result<> Link::send(Message message, When when) {
  if (auto fits = check_frame(message, options_.limits); !fits) return fits;
  Outgoing outgoing;
  outgoing.id = message.id;
  outgoing.head = encode_head(message);
  outgoing.buffers = std::move(message.buffers);
  outgoing.bytes = outgoing.head.size();
  for (const Buffer& buffer : outgoing.buffers) outgoing.bytes += buffer.size();
  const bool is_small = outgoing.buffers.empty();

  std::unique_lock lock(output_->mutex);
  if (!output_->failure.empty()) {
    return fail(ErrorKind::Unavailable,
                fmt::format("the connection to {} is lost: {}", peer(), output_->failure));
  }
  const bool is_first = output_->queue.empty();
  output_->queued_bytes += outgoing.bytes;
  output_->queue.push_back(std::move(outgoing));
  look_if_full();
  if (output_->is_corked || when == When::Later) return {};
  if (has_turns() && is_small && output_->queue.size() < kGatheredMax) {
    output_->is_gathering = true;
    has_output_ = true;
    // The last of them looks whether there is any after it has left.
    if (has_turns()) return {};
  }
  if (when == When::Soon && output_->queue.size() < kGatheredMax) {
    if (!is_first) return {};
    output_->is_gathering = true;
    has_output_ = true;
    lock.unlock();
    post([self = shared_from_this()] { self->write_some(); });
    return {};
  }
  // Behind others, whoever writes those writes this one, too.
  if (is_first || output_->is_gathering) flush(std::move(lock));
  // That it broke is told to all calls of this connection alike, from the loop.
  return {};
}

void Link::take_over(std::int64_t id) {
  std::unique_lock lock(output_->mutex);
  if (output_->is_writing) {
    output_->wanted_back.push_back(id);
    output_->writer_paused.wait(lock, [&] {
      return std::ranges::find(output_->wanted_back, id) == output_->wanted_back.end();
    });
    return;
  }
  const bool is_kept = output_->take_over(id);
  lock.unlock();
  if (!is_kept) lose(std::string(kNoMemory));
}

void Link::flush(std::unique_lock<std::mutex> lock) {
  Output& output = *output_;
  if (output.is_writing) {
    output.has_news = true;
    return;
  }
  output.is_writing = true;
  output.is_gathering = false;
  bool waits_for_room = false;
  std::vector<Buffer> done;
  std::size_t done_bytes = 0;
  while (!output.queue.empty() && output.failure.empty() && !waits_for_room &&
         done_bytes <= kDoneBytesMax) {
    std::array<iovec, kPiecesMax> pieces{};
    const std::size_t count = output.collect(pieces);
    lock.unlock();
    const Result<std::size_t> written = stream_->write(std::span(pieces).first(count));
    if (written && *written == 0) {
      has_output_ = true;  // before the signal can come
      waits_for_room = stream_->ask_for_room();
    }
    lock.lock();
    // Perhaps that there is room: whoever took the signal could not write.
    if (std::exchange(output.has_news, false)) waits_for_room = false;
    if (!written) {
      if (output.failure.empty()) output.failure = written.error().message;
    } else {
      sent_bytes_.fetch_add(*written, std::memory_order_relaxed);
      done_bytes += output.drop_written(*written, done);
      look_if_room(lock);
    }
    if (output.wanted_back.empty()) continue;
    for (const std::int64_t id : std::exchange(output.wanted_back, {})) {
      if (!output.take_over(id) && output.failure.empty()) output.failure = kNoMemory;
    }
    output.writer_paused.notify_all();
  }
  output.is_writing = false;
  if (!output.failure.empty()) {
    const std::deque<Outgoing> unsent = std::exchange(output.queue, {});
    output.queued_bytes = 0;
    const std::string reason = output.failure;
    has_output_ = false;
    output.writer_paused.notify_all();
    lock.unlock();
    return lose(reason);
  }
  has_output_ = !output.queue.empty();
  want_room(has_output_);
  // The rest is the loop's, since nobody knows how long the program takes to destroy its memory.
  if (has_output_ && !waits_for_room) post([self = shared_from_this()] { self->write_some(); });
  lock.unlock();
}

void Link::look_if_full() {
  if (is_full_ || output_->queued_bytes <= options_.queue_bytes_max) return;
  is_full_ = true;
  if (!options_.reads_while_full) set_held(kHeldSinceFull, true);
}

void Link::look_if_room(std::unique_lock<std::mutex>& lock) {
  if (!is_full_ || output_->queued_bytes > options_.queue_bytes_max / 2) return;
  is_full_ = false;
  if (!options_.reads_while_full) set_held(kHeldSinceFull, false);
  if (!options_.throttle) return;
  lock.unlock();
  options_.throttle->changed();
  lock.lock();
}

void Link::set_held(unsigned int why, bool held) {
  const unsigned int before = held ? held_.fetch_or(why) : held_.fetch_and(~why);
  const unsigned int after = held ? before | why : before & ~why;
  if ((before != 0) == (after != 0)) return;
  {
    const std::lock_guard lock(watching_);
    update_watch();
  }
  // What came meanwhile has given its signal.
  if (!held) look_again();
}

bool Link::is_reading_here() { return reading_depth > 0; }

void Link::write_some() { flush(std::unique_lock(output_->mutex)); }

void Link::ready() {
  stream_->woken();
  if (is_closed_ || is_lost_) return;
  if (has_output_) write_some();
  if (is_held()) {
    // Its descriptor would tell so for ever.
    if (stream_->has_ended()) lose("it closed the connection");
    return;
  }
  std::unique_lock lock(reading_, std::try_to_lock);
  if (!lock) {
    // Whoever reads may have looked for the last time already, or sleeps, and the signal is gone.
    has_missed_ = true;
    {
      const std::lock_guard watching(watching_);
      if (sleeper_ != nullptr) sleeper_->ring();
    }
    if (!lock.try_lock()) return;
  }
  const Progress progress = read_turn();
  if (progress == Progress::Lost || is_held()) return;
  if (options_.hot != nullptr && stream_->room_events() == EPOLLIN) {
    // More is likely to come soon: no signal until the loop really sleeps.
    return options_.hot->add(shared_from_this());
  }
  // A socket tells as long as there is something; the others have to be asked for each signal.
  if (stream_->room_events() != EPOLLIN) return;
  if (progress == Progress::Full || !stream_->ask_for_bytes()) look_again();
}

void Link::look_again() {
  post([self = shared_from_this()] { self->ready(); });
}

void Link::post(std::function<void()> work) {
  const std::lock_guard lock(watching_);
  if (watch_) loop_.post(std::move(work));
}

bool Link::poll() {
  if (is_closed_ || is_lost_) return false;
  if (has_output_) write_some();
  if (is_held()) return false;
  const std::unique_lock lock(reading_, std::try_to_lock);
  return lock && read_turn() != Progress::Nothing;
}

bool Link::prepare_to_sleep() {
  // Of those who take turns, the last asks.
  if (is_closed_ || is_lost_ || is_held() || has_turns()) return true;
  const std::unique_lock lock(reading_, std::try_to_lock);
  return !lock || (undelivered_.empty() && stream_->ask_for_bytes());
}

bool Link::read_while(const std::function<std::optional<Pause>()>& next) {
  std::unique_lock lock(reading_, std::try_to_lock);
  if (!lock || is_closed_ || is_lost_) return false;
  want_bytes(false);
  stream_->forget_request();
  if (has_output_) write_some();
  bool has_slept = false;
  while (!is_closed_ && !is_lost_) {
    const std::optional<Pause> pause = next();
    if (!pause) break;
    if (pause->alarm != nullptr) {
      if (!std::exchange(has_slept, true)) set_sleeper(pause->alarm);
      sleep(*pause->alarm, pause->until);
    }
    read_some();
    if (has_output_) write_some();
  }
  if (has_slept) set_sleeper(nullptr);
  if (is_closed_ || is_lost_) return true;
  want_bytes(true);
  leave_to_loop(std::move(lock));
  return true;
}

void Link::leave_to_loop(std::unique_lock<std::mutex> reading) {
  const bool has_more = !stream_->ask_for_bytes();
  // First: the loop looks only if nobody else reads.
  reading.unlock();
  if (has_missed_.exchange(false) || has_more) look_again();
}

void Link::take_turns(const std::function<bool()>& next) {
  set_turn_takers(+1);
  while (!is_closed_ && !is_lost_ && next()) {
    const std::unique_lock lock(reading_, std::try_to_lock);
    if (!lock) continue;
    stream_->forget_request();
    if (has_output_) write_some();
    if (!is_held()) read_some();
  }
  if (set_turn_takers(-1) > 0 || is_closed_ || is_lost_) return;
  if (has_output_) write_some();
  // Whoever has it leaves it to the loop later.
  std::unique_lock lock(reading_, std::try_to_lock);
  if (lock) leave_to_loop(std::move(lock));
}

void Link::sleep(const Alarm& alarm, TimePoint until) {
  if (!stream_->ask_for_bytes()) return;
  std::array<pollfd, 2> watched{{{stream_->fd(), POLLIN, 0}, {alarm.fd(), POLLIN, 0}}};
  timespec time{};
  if (until != kNever) {
    const auto left = std::clamp<Duration>(until - SystemClock().now(), Duration::zero(), kLongNap);
    const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
    time = {nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  }
  ::ppoll(watched.data(), watched.size(), until == kNever ? nullptr : &time, nullptr);
  if (watched[0].revents != 0) stream_->woken();
  if (watched[1].revents != 0) alarm.silence();
}

Link::Progress Link::read_turn() {
  Progress overall = Progress::Nothing;
  for (int reads = 0; reads < kReadsPerTurnMax; ++reads) {
    const Progress progress = read_some();
    if (progress == Progress::Lost || is_closed_ || is_lost_) return Progress::Lost;
    if (progress == Progress::Nothing) break;
    overall = progress;
    if (progress == Progress::Some || is_held()) break;
  }
  return overall;
}

void Link::deliver(std::vector<Message> messages) {
  const bool several = messages.size() > 1;
  if (several) {
    if (options_.crowd) options_.crowd->notice(SystemClock().now());
    const std::lock_guard lock(output_->mutex);
    output_->is_corked = true;
  }
  ++reading_depth;
  std::size_t count = 0;
  while (count < messages.size() && !is_closed_ && !is_lost_ && !is_held()) {
    events_.on_message(*this, std::move(messages[count++]));
  }
  --reading_depth;
  if (count < messages.size()) {
    messages.erase(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(count));
    undelivered_ = std::move(messages);
  }
  if (several) {
    std::unique_lock lock(output_->mutex);
    output_->is_corked = false;
    if (!output_->queue.empty()) flush(std::move(lock));
  }
}

Link::Progress Link::read_some() {
  if (!undelivered_.empty()) {
    deliver(std::exchange(undelivered_, {}));
    return Progress::Full;
  }
  std::span<std::byte> room = reader_.room();
  const bool directly = !room.empty();
  if (directly) room = room.first(std::min(room.size(), kDirectReadBytesMax));
  const std::span<std::byte> into = directly ? room : scratch();
  const Result<std::size_t> got = stream_->read(into);
  if (!got) {
    const bool within = got.error().kind == ErrorKind::Closed && !reader_.is_idle();
    lose(within ? got.error().message + " within a message" : got.error().message);
    return Progress::Lost;
  }
  if (*got == 0) return Progress::Nothing;
  received_bytes_.fetch_add(*got, std::memory_order_relaxed);
  std::vector<Message> messages;
  const Result<> fed =
      directly ? reader_.filled(*got, messages) : reader_.feed(into.first(*got), messages);
  deliver(std::move(messages));
  if (!fed) {
    lose(fmt::format("it breaks the protocol: {}", fed.error().message));
    return Progress::Lost;
  }
  return *got == into.size() ? Progress::Full : Progress::Some;
}

void Link::want_bytes(bool wanted) {
  const std::lock_guard lock(watching_);
  wants_bytes_ = wanted;
  update_watch();
}

void Link::want_room(bool wanted) {
  const std::lock_guard lock(watching_);
  if (wants_room_ == wanted) return;
  wants_room_ = wanted;
  update_watch();
}

void Link::set_sleeper(const Alarm* sleeper) {
  const std::lock_guard lock(watching_);
  sleeper_ = sleeper;
  update_watch();
}

int Link::set_turn_takers(int change) {
  const std::lock_guard lock(watching_);
  const bool had_turns = has_turns();
  turn_takers_ += change;
  if (had_turns != has_turns()) update_watch();
  return turn_takers_;
}

void Link::update_watch() {
  if (!watch_ || is_lost_) return;
  const std::uint32_t room = stream_->room_events();
  std::uint32_t events = 0;
  if (room == EPOLLIN) {
    // A stream that signals only when it is asked to needs no change of what is watched, unless the
    // signal is for another thread.
    if (sleeper_ == nullptr) events = EPOLLIN;
  } else {
    // A thread that reads and has not slept yet looks for room, too: the loop, if it were woken for
    // it, would take its core.
    const bool somebody_looks = (!wants_bytes_ && sleeper_ == nullptr) || has_turns();
    events = (wants_bytes_ && !has_turns() && !is_held() ? std::uint32_t{EPOLLIN} : 0) |
             (wants_room_ && !somebody_looks ? room : 0);
  }
  // EPOLLONESHOT alone: nothing, but cheaper than to leave and to come back.
  watch_->want(events != 0 ? events : std::uint32_t{EPOLLONESHOT});
}

void Link::lose(std::string reason) {
  if (is_lost_.exchange(true)) return;
  std::deque<Outgoing> unsent;  // not to be destroyed with the lock
  {
    std::unique_lock lock(output_->mutex);
    output_->failure = reason;
    // Otherwise it is up to whoever writes.
    if (!output_->is_writing) {
      unsent.swap(output_->queue);
      output_->queued_bytes = 0;
    }
  }
  post([self = shared_from_this(), reason = std::move(reason)]() mutable {
    if (self->is_closed_) return;
    {
      const std::lock_guard lock(self->watching_);
      if (self->watch_) self->watch_->want(0);
    }
    self->events_.on_lost(*self, std::move(reason));
  });
}

}  // namespace muster::rpc
