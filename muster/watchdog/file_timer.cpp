#include "muster/watchdog/file_timer.h"

#include "muster/base/log.h"

#include <boost/json.hpp>
#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <ctime>
#include <fcntl.h>
#include <limits>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace muster::watchdog {
namespace {

namespace json = boost::json;

// Some hundred workers may write at once while the agent is busy, and a client that finds the pipe
// full fails.
constexpr int kPipeBytesWanted = 1 << 20;
constexpr std::size_t kReadBytes = 64 * 1024;
// How much is read before others get their turn: all that the pipe can hold, so that what was
// written before a deadline is seen before the deadline is enforced.
constexpr std::size_t kReadBytesPerTurn = 1 << 20;
// A worker that writes nonsense must not fill the log.
constexpr std::uint64_t kRefusalsLogged = 5;

constexpr double kSecondsMax = 9e9;  // about 285 years; fits the nanosecond count

double system_wall_clock() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

// Python writes a float that never comes as a word that is not JSON. The quotes make sure that this
// is no part of a scope, where they would be escaped.
std::string without_infinity(std::string_view line) {
  constexpr std::string_view kInfinite = "\"expiration_time\": Infinity";
  std::string text(line);
  if (const std::size_t found = text.find(kInfinite); found != std::string::npos)
    text.replace(found, kInfinite.size(), "\"expiration_time\": 1e300");
  return text;
}

tl::unexpected<Error> malformed(std::string reason) {
  return fail(ErrorKind::Invalid, std::move(reason));
}

Result<int> integer(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(json::string_view(name.data(), name.size()));
  if (value == nullptr) return malformed(fmt::format("there is no `{}`", name));
  const std::int64_t* number = value->if_int64();
  if (number == nullptr || *number > std::numeric_limits<int>::max() ||
      *number < std::numeric_limits<int>::min()) {
    return malformed(fmt::format("`{}` is no usual integer", name));
  }
  return static_cast<int>(*number);
}

// What is at `path` and would have to go.
enum class Occupant { None, Removable, LivePipe, Other };

Occupant occupant_of(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return Occupant::None;
  if (S_ISREG(info.st_mode) && info.st_size == 0) return Occupant::Removable;
  if (!S_ISFIFO(info.st_mode)) return Occupant::Other;
  // Opening for writing alone succeeds only while someone reads.
  const Fd writer(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  return writer.is_open() ? Occupant::LivePipe : Occupant::Removable;
}

Result<Fd> make_pipe(const std::string& path) {
  const auto problem = [&](ErrorKind kind, std::string_view reason) {
    return fail(kind, fmt::format("cannot make the timer pipe {}: {}", path, reason));
  };
  switch (occupant_of(path)) {
    case Occupant::None:
      break;
    case Occupant::Removable:
      if (::unlink(path.c_str()) != 0 && errno != ENOENT)
        return problem(ErrorKind::Unavailable, describe_errno(errno));
      break;
    case Occupant::LivePipe:
      return problem(ErrorKind::Conflict, "another process reads from it");
    case Occupant::Other:
      return problem(ErrorKind::Invalid, "there is something else of that name; remove it first");
  }
  if (::mkfifo(path.c_str(), S_IRUSR | S_IWUSR) != 0)
    return problem(ErrorKind::Unavailable, describe_errno(errno));
  // For writing, too: so there is always a writer, and the end of file never comes.
  Fd pipe(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (!pipe.is_open()) {
    const int number = errno;
    ::unlink(path.c_str());
    return problem(ErrorKind::Unavailable, describe_errno(number));
  }
  // Systems may allow less; then it stays as it is.
  ::fcntl(pipe.get(), F_SETPIPE_SZ, kPipeBytesWanted);
  return pipe;
}

// By now someone else may have put something else there.
void remove_pipe(const std::string& path, const Fd& pipe) {
  struct stat there {};
  struct stat ours {};
  if (::lstat(path.c_str(), &there) != 0 || ::fstat(pipe.get(), &ours) != 0) return;
  if (there.st_dev == ours.st_dev && there.st_ino == ours.st_ino) ::unlink(path.c_str());
}

std::string random_uuid(Random& random) {
  std::string text = random_id(random);
  text[12] = '4';                      // the version: random
  text[16] = "89ab"[random.below(4)];  // the variant
  for (const std::size_t place : {20U, 16U, 12U, 8U}) text.insert(place, "-");
  return text;
}

}  // namespace

std::optional<std::string> file_timer_path(const FileTimerEnvironment& environment,
                                           Random& random) {
  if (environment.enable != "1") return std::nullopt;
  if (!environment.path.empty()) return environment.path;
  std::string folder = environment.temporary_folder;
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  if (folder.empty()) folder = "/tmp";
  return fmt::format("{}/watchdog_timer_{}", folder == "/" ? "" : folder, random_uuid(random));
}

Result<FileTimerMessage> parse_file_timer(std::string_view line) {
  const std::string text = without_infinity(line);
  boost::system::error_code problem;
  const json::value value = json::parse(json::string_view(text.data(), text.size()), problem);
  if (problem) return malformed("it is not JSON");
  const json::object* object = value.if_object();
  if (object == nullptr) return malformed("it is no JSON object");

  FileTimerMessage message;
  const auto pid = integer(*object, "pid");
  if (!pid) return fail(pid.error());
  if (*pid <= 0) return malformed("`pid` is no process");
  const auto signal = integer(*object, "signal");
  if (!signal) return fail(signal.error());
  const json::value* scope = object->if_contains("scope_id");
  if (scope == nullptr || !scope->is_string()) return malformed("`scope_id` is no text");
  const json::value* expiration = object->if_contains("expiration_time");
  if (expiration == nullptr || !expiration->is_number())
    return malformed("`expiration_time` is no number");
  message.pid = *pid;
  message.scope.assign(scope->get_string().data(), scope->get_string().size());
  message.expiration_time = expiration->to_number<double>();
  message.signal = *signal;
  if (!std::isfinite(message.expiration_time))
    return malformed("`expiration_time` is no number of seconds");
  return message;
}

TimePoint monotonic_deadline(double expiration_time, double wall_now, TimePoint now) {
  const double seconds = expiration_time - wall_now;
  if (!(seconds > 0)) return now;
  if (seconds > kSecondsMax) return kNever;
  return after(now, Duration(std::llround(seconds * 1e9)));
}

Result<std::unique_ptr<FileTimerServer>> FileTimerServer::create(net::EpollLoop& loop,
                                                                 Deadlines& deadlines,
                                                                 FileTimerOptions options) {
  auto pipe = make_pipe(options.path);
  if (!pipe && pipe.error().kind == ErrorKind::Conflict) {
    const std::string taken = options.path;
    options.path = fmt::format("{}.{}", taken, ::getpid());
    log::info("watchdog", "the timer pipe {} belongs to another process, ours is {}", taken,
              options.path);
    pipe = make_pipe(options.path);
  }
  if (!pipe) return fail(pipe.error());
  return std::unique_ptr<FileTimerServer>(
      new FileTimerServer(loop, deadlines, std::move(options), std::move(*pipe)));
}

FileTimerServer::FileTimerServer(net::EpollLoop& loop, Deadlines& deadlines,
                                 FileTimerOptions options, Fd pipe)
    : loop_(loop),
      deadlines_(deadlines),
      path_(std::move(options.path)),
      wall_clock_(std::move(options.wall_clock)),
      pipe_(std::move(pipe)),
      watch_(loop, pipe_.get(), [this](std::uint32_t) { read_some(); }),
      lines_(kFileTimerLineBytesMax) {
  if (!wall_clock_) wall_clock_ = system_wall_clock;
  watch_.want(EPOLLIN);
}

FileTimerServer::~FileTimerServer() { remove_pipe(path_, pipe_); }

void FileTimerServer::read_some() {
  char buffer[kReadBytes];
  const LineReader::Handler handle = [this](const LineReader::Line& line) {
    take(line);
    return true;
  };
  for (std::size_t total = 0; total < kReadBytesPerTurn;) {
    const ssize_t got = ::read(pipe_.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    // Empty. There is no end, for we are a writer ourselves, and a pipe has no other errors.
    if (got <= 0) return;
    total += static_cast<std::size_t>(got);
    lines_.feed({buffer, static_cast<std::size_t>(got)}, handle);
  }
}

void FileTimerServer::take(const LineReader::Line& line) {
  if (line.too_long) return refuse(line.text, "it is too long");
  auto message = parse_file_timer(line.text);
  if (!message) return refuse(line.text, message.error().message);
  if (message->is_release()) {
    deadlines_.release(message->pid, message->scope);
  } else {
    Timeout timeout;
    timeout.pid = message->pid;
    timeout.scope = std::move(message->scope);
    timeout.deadline = monotonic_deadline(message->expiration_time, wall_clock_(), loop_.now());
    timeout.signal = message->signal;
    timeout.expiration_time = message->expiration_time;
    const auto done = deadlines_.set(std::move(timeout));
    // The end of a process is no news here, and a process that has ended needs no deadline.
    if (!done && done.error().kind != ErrorKind::Closed)
      return refuse(line.text, done.error().message);
  }
  ++message_count_;
  last_message_ = loop_.now();
}

void FileTimerServer::refuse(std::string_view line, std::string_view reason) {
  if (++refused_count_ <= kRefusalsLogged) {
    log::warn("watchdog", "ignoring a timer message: {}{} message={}", reason,
              refused_count_ == kRefusalsLogged ? " (further ones are not reported)" : "",
              log::quote(line));
  }
}

}  // namespace muster::watchdog
