#include "muster/failures/recorder.h"

#include "muster/failures/recorder_c.h"
#include "muster/failures/utf8.h"

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <cxxabi.h>
#include <exception>
#include <execinfo.h>
#include <fcntl.h>
#include <memory>
#include <string.h>
#include <string>
#include <typeinfo>
#include <unistd.h>

namespace muster::failures {
namespace {

constexpr const char* kVariable = "TORCHELASTIC_ERROR_FILE";
constexpr int kFramesMax = 64;
constexpr int kCausesMax = 16;
constexpr std::size_t kStackTextBytesMax = std::size_t{16} << 10;
constexpr std::size_t kSignalStackBytes = std::size_t{64} << 10;
constexpr int kFatalSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS};

// ---- What a signal handler may do: no allocation, no locks, no stdio. Everything down to
// write_record keeps to that, and the other paths use it, too.

// Text in a buffer of fixed size; what does not fit is cut off.
template <std::size_t kBytesMax>
class FixedText {
 public:
  bool put(std::string_view text) {
    const std::size_t fits = text.size() < kBytesMax - size_ ? text.size() : kBytesMax - size_ - 1;
    std::memcpy(bytes_ + size_, text.data(), fits);
    size_ += fits;
    bytes_[size_] = '\0';
    return fits == text.size();
  }
  bool put_number(std::uint64_t number, unsigned base) {
    char digits[24];
    std::size_t start = sizeof(digits);
    do {
      digits[--start] = "0123456789abcdef"[number % base];
      number /= base;
    } while (number != 0);
    return put(std::string_view(digits + start, sizeof(digits) - start));
  }
  std::string_view view() const { return {bytes_, size_}; }
  const char* c_str() const { return bytes_; }
  // Drops newlines at the end.
  void trim() {
    while (size_ > 0 && bytes_[size_ - 1] == '\n') bytes_[--size_] = '\0';
  }

 private:
  char bytes_[kBytesMax] = {};
  std::size_t size_ = 0;
};

// A file that is written through a small buffer.
class FileWriter {
 public:
  explicit FileWriter(const char* path)
      : fd_(::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666)),
        is_good_(fd_ >= 0) {}
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  ~FileWriter() { close(); }

  void put(std::string_view text) {
    for (const char byte : text) {
      if (size_ == sizeof(bytes_)) flush();
      bytes_[size_++] = byte;
    }
  }
  // As the inside of a JSON string.
  void put_escaped(std::string_view text) {
    while (!text.empty()) {
      const std::size_t bytes = utf8_sequence_bytes(text);
      const auto first = static_cast<unsigned char>(text.front());
      if (bytes == 0) {
        put("\\ufffd");
      } else if (first == '"' || first == '\\') {
        put("\\");
        put(text.substr(0, 1));
      } else if (first == '\n') {
        put("\\n");
      } else if (first < 0x20) {
        const char hex[] = {"0123456789abcdef"[first >> 4], "0123456789abcdef"[first & 0xF]};
        put("\\u00");
        put(std::string_view(hex, sizeof(hex)));
      } else {
        put(text.substr(0, bytes));
      }
      text.remove_prefix(bytes == 0 ? 1 : bytes);
    }
  }
  // True if everything has arrived.
  bool close() {
    if (fd_ < 0) return is_good_;
    flush();
    if (::close(fd_) != 0) is_good_ = false;
    fd_ = -1;
    return is_good_;
  }

 private:
  void flush() {
    std::size_t done = 0;
    while (is_good_ && done < size_) {
      const ssize_t count = ::write(fd_, bytes_ + done, size_ - done);
      if (count > 0) done += static_cast<std::size_t>(count);
      if (count < 0 && errno != EINTR) is_good_ = false;
    }
    size_ = 0;
  }

  int fd_;
  bool is_good_;
  char bytes_[512];
  std::size_t size_ = 0;
};

using Path = FixedText<PATH_MAX>;

bool write_record(const Path& path, std::string_view message, std::string_view traceback) {
  FixedText<PATH_MAX + 32> temporary;
  temporary.put(path.view());
  temporary.put(".");
  temporary.put_number(static_cast<std::uint64_t>(::getpid()), 10);
  temporary.put(".tmp");
  FixedText<24> seconds;
  seconds.put_number(static_cast<std::uint64_t>(::time(nullptr)), 10);

  FileWriter file(temporary.c_str());
  file.put(R"({"message":{"message":")");
  file.put_escaped(message);
  file.put(R"(","extraInfo":{)");
  if (!traceback.empty()) {
    file.put(R"("py_callstack":")");
    file.put_escaped(traceback);
    file.put(R"(",)");
  }
  file.put(R"("timestamp":")");
  file.put(seconds.view());
  file.put("\"}}}\n");
  const bool is_written = file.close() && std::rename(temporary.c_str(), path.c_str()) == 0;
  if (!is_written) ::unlink(temporary.c_str());
  return is_written;
}

// Appends the calling thread's stack as text. backtrace_symbols_fd does not allocate, but it wants
// a descriptor: a pipe holds more than we keep. Two frames are ours.
void capture_stack(FixedText<kStackTextBytesMax>& out) {
  constexpr int kOwnFrames = 2;
  void* frames[kFramesMax];
  const int count = ::backtrace(frames, kFramesMax);
  int ends[2];
  if (count <= kOwnFrames || ::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return;
  ::backtrace_symbols_fd(frames + kOwnFrames, count - kOwnFrames, ends[1]);
  ::close(ends[1]);
  char chunk[512];
  while (true) {
    const ssize_t bytes = ::read(ends[0], chunk, sizeof(chunk));
    if (bytes <= 0 || !out.put(std::string_view(chunk, static_cast<std::size_t>(bytes)))) break;
  }
  ::close(ends[0]);
  out.trim();
}

// ---- What the handlers know. Written once, by install_recorder, before they can run.

Path recorded_path;
pid_t recorded_pid = 0;
std::terminate_handler next_terminate_handler = nullptr;
alignas(16) char signal_stack[kSignalStackBytes];
FixedText<kStackTextBytesMax> stack_text;  // used by the one thread that set is_ending

std::atomic<bool> is_installed{false};
// A thread is recording the end of the process. Others that crash meanwhile wait for that end.
std::atomic<bool> is_ending{false};
std::atomic<bool> has_recorded_exception{false};

[[noreturn]] void wait_for_the_end() {
  while (true) ::pause();
}

const char* meaning_of(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "invalid memory access";
    case SIGBUS:
      return "bad memory access";
    case SIGFPE:
      return "arithmetic error";
    case SIGILL:
      return "illegal instruction";
    case SIGABRT:
      return "the program aborted";
    case SIGSYS:
      return "bad system call";
    default:
      return "fatal signal";
  }
}

void record_signal(int signal, const siginfo_t& info) {
  FixedText<128> message;
  message.put("SIG");
  const char* const name = ::sigabbrev_np(signal);
  message.put(name == nullptr ? "?" : name);
  message.put(": ");
  message.put(meaning_of(signal));
  // A positive code comes from the kernel: the program itself did it. Else somebody sent it.
  const bool has_address = info.si_code > 0 && (signal == SIGSEGV || signal == SIGBUS ||
                                                signal == SIGFPE || signal == SIGILL);
  if (has_address) {
    message.put(" at address 0x");
    message.put_number(reinterpret_cast<std::uintptr_t>(info.si_addr), 16);
  } else if (info.si_code <= 0 && info.si_pid != recorded_pid) {
    message.put(", sent by process ");
    message.put_number(static_cast<std::uint64_t>(info.si_pid), 10);
  }
  // Whoever shows the traceback does not show the message.
  stack_text.put(message.view());
  stack_text.put("\n");
  capture_stack(stack_text);
  write_record(recorded_path, message.view(), stack_text.view());
}

extern "C" void muster_on_fatal_signal(int signal, siginfo_t* info, void*) {
  // abort() after an uncaught exception: the exception says more.
  const bool is_said = signal == SIGABRT && has_recorded_exception.load();
  if (::getpid() == recorded_pid && !is_said) {
    if (is_ending.exchange(true)) wait_for_the_end();
    record_signal(signal, *info);
  }
  // The signal is blocked until we return; then it ends the process, with a core if there are any.
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(signal, &action, nullptr);
  ::raise(signal);
}

// ---- Exceptions. From here on memory may be allocated.

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 ? std::string(text.get()) : std::string(name);
}

// The type of an exception. std::throw_with_nested wraps it into a type of its own.
std::string type_name(const std::type_info& type) {
  constexpr std::string_view kWrapper = "std::_Nested_exception<";
  std::string name = demangled(type.name());
  if (!name.starts_with(kWrapper) || !name.ends_with('>')) return name;
  return name.substr(kWrapper.size(), name.size() - kWrapper.size() - 1);
}

// "program(_ZN3fooEv+0x12) [0x..]" with readable names.
std::string demangled_stack(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t start = text.find("(_Z");
    const std::size_t end =
        text.find_first_of("+)\n", start == std::string_view::npos ? start : start + 1);
    if (start == std::string_view::npos || end == std::string_view::npos) break;
    out += text.substr(0, start + 1);
    out += demangled(std::string(text.substr(start + 1, end - start - 1)).c_str());
    text.remove_prefix(end);
  }
  out += text;
  return out;
}

struct ExceptionText {
  std::string message;  // "<Type>: <text>"
  std::string causes;   // those of a nested exception, each on a line of its own after a newline
};

std::string describe_current_exception() {
  try {
    throw;
  } catch (const std::exception& exception) {
    return type_name(typeid(exception)) + ": " + exception.what();
  } catch (const char* text) {
    return std::string("const char*: ") + (text == nullptr ? "null" : text);
  } catch (const std::string& text) {
    return "std::string: " + text;
  } catch (...) {
    const std::type_info* const type = abi::__cxa_current_exception_type();
    return type == nullptr ? "unknown exception" : type_name(*type);
  }
}

std::exception_ptr cause_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::nested_exception& nested) {
    return nested.nested_ptr();
  } catch (...) {
    return nullptr;
  }
}

ExceptionText text_of_current_exception() {
  ExceptionText text;
  text.message = describe_current_exception();
  std::exception_ptr cause = cause_of(std::current_exception());
  for (int depth = 0; cause && depth < kCausesMax; ++depth) {
    try {
      std::rethrow_exception(cause);
    } catch (...) {
      text.causes += "\ncaused by " + describe_current_exception();
    }
    cause = cause_of(cause);
  }
  return text;
}

void record_termination() {
  if (is_ending.exchange(true)) wait_for_the_end();
  capture_stack(stack_text);
  ExceptionText text;
  if (std::current_exception()) {
    text = text_of_current_exception();
  } else {
    text.message = "std::terminate was called without an exception";
  }
  const std::string traceback =
      text.message + text.causes + "\n" + demangled_stack(stack_text.view());
  write_record(recorded_path, text.message, traceback);
  has_recorded_exception = true;
}

[[noreturn]] void on_terminate() {
  if (::getpid() == recorded_pid) record_termination();
  if (next_terminate_handler != nullptr) next_terminate_handler();
  std::abort();
}

// False if the launcher named no file. A relative name counts from where we are now.
bool find_path(Path& path) {
  const char* const name = std::getenv(kVariable);
  if (name == nullptr || *name == '\0') return false;
  char folder[PATH_MAX];
  if (*name != '/' && ::getcwd(folder, sizeof(folder)) != nullptr) {
    path.put(folder);
    path.put("/");
  }
  return path.put(name);
}

void install_signal_handlers() {
  stack_t current{};
  if (::sigaltstack(nullptr, &current) == 0 && (current.ss_flags & SS_DISABLE) != 0) {
    // Without a stack of its own the handler could not run when the stack is what ran out. Only for
    // this thread.
    stack_t own{};
    own.ss_sp = signal_stack;
    own.ss_size = sizeof(signal_stack);
    ::sigaltstack(&own, nullptr);
  }
  // The first call loads a library, which a handler must not do.
  void* frame = nullptr;
  ::backtrace(&frame, 1);
  for (const int signal : kFatalSignals) {
    struct sigaction found {};
    if (::sigaction(signal, nullptr, &found) != 0 || found.sa_handler != SIG_DFL) continue;
    struct sigaction action {};
    action.sa_sigaction = muster_on_fatal_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigfillset(&action.sa_mask);
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace

void install_recorder(const RecorderOptions& options) {
  if (is_installed.exchange(true)) return;
  if (!find_path(recorded_path)) return;
  recorded_pid = ::getpid();
  next_terminate_handler = std::set_terminate(on_terminate);
  if (options.fatal_signals) install_signal_handlers();
}

bool record_error(std::string_view message, std::string_view traceback) {
  // Of a forked copy of the worker nobody has asked.
  if (recorded_pid != 0 && ::getpid() != recorded_pid) return false;
  Path path;
  return find_path(path) && write_record(path, message, traceback);
}

bool record_current_exception() {
  const ExceptionText text = text_of_current_exception();
  return record_error(text.message, text.causes.empty() ? text.causes : text.message + text.causes);
}

}  // namespace muster::failures

void muster_install_recorder(void) { muster::failures::install_recorder(); }

int muster_record_error(const char* message, const char* traceback) {
  const std::string_view text = message == nullptr ? "" : message;
  const std::string_view trace = traceback == nullptr ? "" : traceback;
  return muster::failures::record_error(text, trace) ? 1 : 0;
}
