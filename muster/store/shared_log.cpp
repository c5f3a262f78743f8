#include "muster/store/shared_log.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/store/notified_signal.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace muster::store {
namespace {

constexpr Duration kLockRetryFirst = std::chrono::microseconds(200);
constexpr Duration kLockRetryMax = std::chrono::milliseconds(20);

constexpr std::size_t kReadBytes = std::size_t{1} << 20;
// While someone only watches, the log is replayed in pieces that hold fewer records (of at least 9
// bytes) than a watcher may fall behind, and watchers get a turn between them: a burst of writes
// does not end their watches.
constexpr std::size_t kPieceBytes = 32u << 10;
static_assert(kPieceBytes / 9 < kWatchChangesMax);

// One wait, in its coroutine's frame.
class Waiter final : public LogObserver {
 public:
  Waiter(SharedLog& log, SharedLog::Awaited awaited, std::vector<std::string> names)
      : LogObserver(log), awaited_(awaited), done_(log.loop()) {
    for (std::string& name : names) {
      if (!log.present(awaited, name)) missing_.insert(std::move(name));
    }
  }

  const std::set<std::string, std::less<>>& missing() const { return missing_; }
  Oneshot<Result<>>& done() { return done_; }

  void observe(const FileChange& change) override {
    using Awaited = SharedLog::Awaited;
    if (change.kind == FileChange::Kind::Deleted) return;
    const Awaited written = change.kind == FileChange::Kind::Pushed ? Awaited::Queue : Awaited::Key;
    if (awaited_ != Awaited::Either && awaited_ != written) return;
    const auto found = missing_.find(change.name);
    if (found == missing_.end()) return;
    missing_.erase(found);
    if (missing_.empty()) done_.set({});
  }

  void lost(const Error& error) override { done_.set(fail(error)); }

 private:
  const SharedLog::Awaited awaited_;
  std::set<std::string, std::less<>> missing_;
  Oneshot<Result<>> done_;
};

}  // namespace

LogObserver::LogObserver(SharedLog& log)
    : log_(log), place_(log.observers_.insert(log.observers_.end(), this)) {
  log_.start_looking();
}

void LogObserver::leave() {
  if (place_) log_.observers_.erase(*place_);
  place_.reset();
}

SharedLog::SharedLog(Loop& loop, Random& random, FileStoreOptions options, LogFile file)
    : loop_(loop),
      random_(random),
      options_(std::move(options)),
      file_(std::move(file)),
      signal_(make_change_signal(loop, random,
                                 {.first = options_.look_first, .max = options_.look_max},
                                 file_.descriptor())) {}

Task<Result<HeldLock>> SharedLog::lock(LogFile::Mode mode, TimePoint deadline) {
  const TimePoint patience_ends = after(loop_.now(), options_.lock_patience);
  Duration delay = kLockRetryFirst;
  for (;;) {
    const Result<bool> taken = file_.try_lock(mode);
    if (!taken) co_return fail(taken.error());
    if (*taken) co_return HeldLock(file_);
    const TimePoint now = loop_.now();
    if (now >= patience_ends) {
      co_return fail(ErrorKind::Unavailable,
                     fmt::format("other processes have kept the store file {} locked for {}",
                                 file_.path(), describe(options_.lock_patience)));
    }
    if (now >= deadline) {
      co_return fail(
          ErrorKind::Timeout,
          fmt::format("the deadline passed while other processes kept the store file {} locked",
                      file_.path()));
    }
    const TimePoint again = after(now, jittered(delay, random_));
    delay = longer(delay, kLockRetryMax);
    const TimePoint wake = std::min({again, patience_ends, deadline});
    co_await sleep_until(loop_, wake);
  }
}

Task<Result<>> SharedLog::catch_up(TimePoint deadline) {
  const Result<HeldLock> held = co_await lock(LogFile::Mode::Shared, deadline);
  if (!held) co_return fail(held.error());
  const Result<Extent> extent = replay_and_mend(Amount::Everything);
  if (!extent) co_return fail(extent.error());
  co_return Result<>();
}

Task<Result<bool>> SharedLog::read_piece(TimePoint deadline) {
  const Result<HeldLock> held = co_await lock(LogFile::Mode::Shared, deadline);
  if (!held) co_return fail(held.error());
  const Result<Extent> extent = replay_and_mend(Amount::OnePiece);
  if (!extent) co_return fail(extent.error());
  co_return *extent == Extent::MoreToCome;
}

Task<Result<HeldLock>> SharedLog::begin_write(TimePoint deadline) {
  Result<HeldLock> held = co_await lock(LogFile::Mode::Exclusive, deadline);
  if (!held) co_return fail(held.error());
  const Result<Extent> extent = replay(Amount::Everything);
  if (!extent) co_return fail(extent.error());
  if (*extent == Extent::UnfinishedRecord) {
    if (auto mended = mend(); !mended) co_return fail(mended.error());
  }
  co_return std::move(held);
}

Result<> SharedLog::commit(std::string_view records) {
  if (auto written = file_.append(content_.position(), records); !written) return written;
  // Through the same door as what others write, so that our own waiters and watchers hear of it.
  const auto replayed =
      content_.replay(records, [this](const FileChange& change) { tell_observers(change); });
  MUSTER_ASSERT(replayed && *replayed == records.size());
  return {};
}

Result<std::uint64_t> SharedLog::checked_size() {
  if (closed_) return fail(*closed_);
  Result<std::uint64_t> size = file_.size();
  if (size && *size < content_.position()) {
    size = fail(ErrorKind::Closed,
                fmt::format("the store file {} was cut to {} bytes after {} had been read",
                            file_.path(), *size, content_.position()));
  }
  if (!size && size.error().kind == ErrorKind::Closed) closed_ = size.error();
  return size;
}

Result<SharedLog::Extent> SharedLog::replay(Amount amount) {
  const Result<std::uint64_t> size = checked_size();
  if (!size) return fail(size.error());
  const FileLog::Observer observer = [this](const FileChange& change) { tell_observers(change); };
  std::string bytes;  // of the file from the log's position on
  for (;;) {
    const std::uint64_t read_to = content_.position() + bytes.size();
    const std::uint64_t unread = *size > read_to ? *size - read_to : 0;
    if (unread == 0) return bytes.empty() ? Extent::Whole : Extent::UnfinishedRecord;
    const std::size_t wanted = static_cast<std::size_t>(
        std::min<std::uint64_t>(unread, amount == Amount::Everything ? kReadBytes : kPieceBytes));
    const std::size_t before = bytes.size();
    if (auto got = file_.read(read_to, wanted, bytes); !got) return fail(got.error());
    if (bytes.size() == before) {
      return fail(ErrorKind::Unavailable,
                  fmt::format("the store file {} became shorter while it was read", file_.path()));
    }
    const Result<std::size_t> replayed = content_.replay(bytes, observer);
    if (!replayed) {
      return fail(ErrorKind::Invalid,
                  fmt::format("{} is not a store file, or was damaged: there is {} at offset {}",
                              file_.path(), replayed.error().message, content_.position()));
    }
    bytes.erase(0, *replayed);
    if (amount == Amount::OnePiece && *replayed > 0 && unread > wanted) return Extent::MoreToCome;
  }
}

Result<SharedLog::Extent> SharedLog::replay_and_mend(Amount amount) {
  Result<Extent> extent = replay(amount);
  if (!extent || *extent != Extent::UnfinishedRecord) return extent;
  // Nobody writes while we hold a shared lock, so the record's writer is gone. Whoever finds it
  // mends it: a PyTorch process would append after it or try to read it for ever.
  const Result<bool> exclusive = file_.try_lock(LogFile::Mode::Exclusive);
  if (!exclusive) return fail(exclusive.error());
  if (!*exclusive) return extent;
  // The lock was let go for an instant on the way.
  extent = replay(amount);
  if (!extent || *extent != Extent::UnfinishedRecord) return extent;
  if (auto mended = mend(); !mended) return fail(mended.error());
  return Extent::Whole;
}

Result<> SharedLog::mend() {
  if (auto cut = file_.cut(content_.position()); !cut) return cut;
  log::warn("store", "cut off a record whose writer was killed file={} offset={}",
            log::quote(file_.path()), content_.position());
  return {};
}

bool SharedLog::present(Awaited awaited, std::string_view name) const {
  return (awaited != Awaited::Queue && content_.find(name) != nullptr) ||
         (awaited != Awaited::Key && content_.front(name) != nullptr);
}

Task<Result<>> SharedLog::until_present(Awaited awaited, std::vector<std::string> names,
                                        TimePoint deadline) {
  if (std::all_of(names.begin(), names.end(),
                  [&](const std::string& name) { return present(awaited, name); })) {
    co_return Result<>();
  }
  Waiter waiter(*this, awaited, std::move(names));
  Timer timer(loop_, [this, &waiter] {
    if (waiter.missing().empty()) return;  // and about to go on
    const std::size_t other_count = waiter.missing().size() - 1;
    waiter.done().set(
        fail(ErrorKind::Timeout,
             fmt::format("the deadline passed while waiting for {}{} in the store file {}",
                         log::quote(*waiter.missing().begin()),
                         other_count == 0 ? "" : fmt::format(" and {} more", other_count),
                         file_.path())));
  });
  timer.set(deadline);
  hurry();
  co_return co_await waiter.done();
}

void SharedLog::tell_observers(const FileChange& change) {
  for (auto place = observers_.begin(); place != observers_.end();) {
    (*place++)->observe(change);  // which may leave
  }
}

void SharedLog::start_looking() {
  if (looking_) return;
  looking_ = true;
  scope_.start(look());
}

Task<void> SharedLog::look() {
  while (!observers_.empty()) {
    co_await signal_->wait();
    Result<bool> more = true;
    while (more && *more) {
      // The observers' turn.
      const TimePoint now = loop_.now();
      co_await sleep_until(loop_, now);
      const std::uint64_t before = content_.position();
      more = co_await read_piece(kNever);
      if (content_.position() != before) hurry();
    }
    if (more) continue;
    for (auto place = observers_.begin(); place != observers_.end();) {
      (*place++)->lost(more.error());
    }
  }
  looking_ = false;
}

}  // namespace muster::store
