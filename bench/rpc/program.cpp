#include "bench/rpc/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>
#include <mutex>
#include <sched.h>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <vector>

namespace muster::bench {
namespace {

using std::chrono::duration;
using std::chrono::duration_cast;

RpcClock::duration from_seconds(double seconds) {
  return duration_cast<RpcClock::duration>(duration<double>(seconds));
}

std::size_t number(std::string_view name, const char* text) {
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text, &end, 10);
  if (end == text || *end != '\0') {
    throw std::runtime_error(fmt::format("{} is no number: {}", name, text));
  }
  return value;
}

RpcOptions parse(int argc, char** argv) {
  const std::span<char*> words(argv, static_cast<std::size_t>(argc));
  const std::string_view role = words.size() > 1 ? words[1] : "";
  if (role != "server" && role != "client") {
    throw std::runtime_error("the first argument must be server or client");
  }
  RpcOptions options;
  options.is_server = role == "server";
  for (std::size_t at = 2; at < words.size(); at += 2) {
    const std::string_view name = words[at];
    if (at + 1 == words.size()) throw std::runtime_error(fmt::format("{} needs a value", name));
    const char* value = words[at + 1];
    if (name == "--transport") {
      options.transport = value;
    } else if (name == "--address") {
      options.address = value;
    } else if (name == "--case") {
      options.case_name = value;
    } else if (name == "--kind") {
      options.kind = value;
    } else if (name == "--bytes") {
      options.bytes = number(name, value);
    } else if (name == "--in-flight") {
      options.in_flight = number(name, value);
    } else if (name == "--threads") {
      options.threads = std::max<std::size_t>(number(name, value), 1);
    } else if (name == "--count") {
      options.count = number(name, value);
    } else if (name == "--seconds") {
      options.seconds = std::strtod(value, nullptr);
    } else if (name == "--frees") {
      options.freed = static_cast<int>(number(name, value));
    } else {
      throw std::runtime_error(fmt::format("there is no option {}", name));
    }
  }
  return options;
}

double at_fraction(std::vector<float>& lengths, double fraction) {
  const auto last = static_cast<double>(lengths.size() - 1);
  const auto place = lengths.begin() + static_cast<std::ptrdiff_t>(fraction * last);
  std::nth_element(lengths.begin(), place, lengths.end());
  return static_cast<double>(*place);
}

// No two words are alike, and none is like the word of another seed at the same place.
std::vector<std::byte> payload_of(std::size_t bytes, std::uint64_t seed) {
  constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15;
  std::vector<std::byte> payload(bytes);
  for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = (at + seed) * kStep;
    std::memcpy(&payload[at], &word, std::min(sizeof word, bytes - at));
  }
  return payload;
}

[[noreturn]] void fail_echo() {
  throw std::runtime_error("an echo brought other bytes than were sent");
}

// What one thread sends in its echoes. Two payloads take turns, and each time the number of the
// echo is written into a few places, others than before: memory that no reply was written into
// does not pass for one.
class EchoPayloads {
 public:
  explicit EchoPayloads(std::size_t bytes) : payloads_{payload_of(bytes, 1), payload_of(bytes, 2)} {
    turn();
  }

  std::span<const std::byte> now() const { return payloads_[count_ % payloads_.size()]; }

  /// Leaves alone what was sent last.
  void turn() {
    ++count_;
    std::vector<std::byte>& payload = payloads_[count_ % payloads_.size()];
    for (std::size_t part = 0; part < kPlaces; ++part) {
      std::memcpy(payload.data() + place(part), &count_, word_bytes());
    }
  }

  /// Of the reply to now().
  void check_places(std::span<const std::byte> reply) const {
    if (reply.size() != now().size()) fail_echo();
    for (std::size_t part = 0; part < kPlaces; ++part) {
      const std::size_t at = place(part);
      if (std::memcmp(reply.data() + at, now().data() + at, word_bytes()) != 0) fail_echo();
    }
  }

 private:
  static constexpr std::size_t kPlaces = 4;

  std::size_t word_bytes() const { return std::min(sizeof count_, now().size()); }
  std::size_t place(std::size_t part) const {
    constexpr std::size_t kStepBytes = 65537;
    const std::size_t places = now().size() - word_bytes() + 1;
    return (places / kPlaces * part + count_ * kStepBytes) % places;
  }

  std::array<std::vector<std::byte>, 2> payloads_;
  std::uint64_t count_ = 0;
};

// What one measurement of several threads needs in common. The last thread to arrive says when it
// begins, so that all are warm by then.
class Together {
 public:
  explicit Together(const RpcOptions& options)
      : seconds_(options.seconds),
        barrier_(static_cast<std::ptrdiff_t>(options.threads), Begin{this}) {}

  RpcClock::time_point wait() {
    barrier_.arrive_and_wait();
    return ends_;
  }
  void leave() { barrier_.arrive_and_drop(); }
  RpcClock::time_point begun() const { return begun_; }
  double cpu_before() const { return cpu_before_; }

 private:
  struct Begin {
    Together* together;
    void operator()() noexcept {
      together->cpu_before_ = process_cpu_seconds();
      together->begun_ = RpcClock::now();
      together->ends_ = together->begun_ + from_seconds(together->seconds_);
    }
  };

  double seconds_;
  double cpu_before_ = 0;
  RpcClock::time_point begun_;
  RpcClock::time_point ends_;
  std::barrier<Begin> barrier_;
};

struct ThreadResult {
  std::vector<float> lengths;  // in microseconds
  std::uint64_t calls = 0;
  RpcClock::time_point ended;  // before replies are compared and connections closed
  double cpu_after = 0;

  void end() {
    ended = RpcClock::now();
    cpu_after = process_cpu_seconds();
  }
};

void warm_up(double seconds, int calls_min, const std::function<void()>& call) {
  const RpcClock::time_point ends = RpcClock::now() + from_seconds(seconds);
  for (int calls = 0; calls < calls_min || RpcClock::now() < ends; ++calls) call();
}

// What `between` does after each call does not count.
void measure_calls(Together& together, ThreadResult& result, const std::function<void()>& call,
                   const std::function<void()>& between = nullptr) {
  const RpcClock::time_point ends = together.wait();
  RpcClock::duration not_counted{};
  RpcClock::time_point before = RpcClock::now();
  while (before < ends) {
    call();
    const RpcClock::time_point now = RpcClock::now();
    result.lengths.push_back(duration<float, std::micro>(now - before).count());
    before = now;
    if (between) {
      between();
      before = RpcClock::now();
      not_counted += before - now;
    }
  }
  result.end();
  result.ended -= not_counted;
  result.calls = result.lengths.size();
}

void measure_echoes(const RpcOptions& options, Together& together, Caller& caller,
                    ThreadResult& result) {
  EchoPayloads payloads(options.bytes);
  std::span<const std::byte> sent;
  const auto echo = [&] {
    sent = payloads.now();
    caller.echo(sent);
  };
  const auto check_and_turn = [&] {
    payloads.check_places(caller.reply());
    payloads.turn();
  };
  const auto check_all = [&] {
    const std::span<const std::byte> reply = caller.reply();
    if (!std::equal(reply.begin(), reply.end(), sent.begin(), sent.end())) fail_echo();
  };
  warm_up(options.seconds / 5, 2, [&] {
    echo();
    check_and_turn();
  });
  check_all();
  measure_calls(together, result, echo, check_and_turn);
  check_all();
}

void let_run_anywhere(int process, const cpu_set_t& processors) {
  for (const auto& thread :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/task", process))) {
    const int id = std::stoi(thread.path().filename().string());
    if (::sched_setaffinity(id, sizeof processors, &processors) != 0 && errno != ESRCH) {
      throw std::runtime_error(fmt::format("sched_setaffinity: {}", std::strerror(errno)));
    }
  }
}

void free_both(const RpcOptions& options) {
  cpu_set_t all{};
  if (::sched_getaffinity(::getppid(), sizeof all, &all) != 0) {
    throw std::runtime_error(fmt::format("sched_getaffinity: {}", std::strerror(errno)));
  }
  let_run_anywhere(options.freed, all);
  let_run_anywhere(::getpid(), all);
}

void measure_thread(const RpcOptions& options, const RpcProgram& program, Together& together,
                    ThreadResult& result) {
  const std::unique_ptr<Caller> caller = program.connect(options);
  const double warm_up_seconds = std::max(0.05, options.seconds / 5);
  result.lengths.reserve(1 << 20);
  caller->noop();
  if (options.freed != 0) free_both(options);
  if (options.case_name == "noop" || options.case_name == "noop-pool") {
    warm_up(warm_up_seconds, 100, [&] { caller->noop(); });
    measure_calls(together, result, [&] { caller->noop(); });
  } else if (options.case_name == "inflight") {
    caller->keep_in_flight(options.in_flight, RpcClock::now() + from_seconds(warm_up_seconds));
    const RpcClock::time_point ends = together.wait();
    result.calls = caller->keep_in_flight(options.in_flight, ends);
    result.end();
  } else if (options.case_name == "echo") {
    measure_echoes(options, together, *caller, result);
  } else if (options.case_name == "idle") {
    std::this_thread::sleep_until(together.wait());
    result.end();
  } else {
    throw std::runtime_error(fmt::format("there is no case {}", options.case_name));
  }
}

RpcResult measure(const RpcOptions& options, const RpcProgram& program) {
  Together together(options);
  std::vector<ThreadResult> results(options.threads);
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  threads.reserve(options.threads);
  for (ThreadResult& result : results) {
    threads.emplace_back([&] {
      try {
        measure_thread(options, program, together, result);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
        together.leave();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  std::vector<float> lengths;
  std::uint64_t calls = 0;
  RpcClock::time_point ended = together.begun();
  double cpu_after = 0;
  for (const ThreadResult& result : results) {
    ended = std::max(ended, result.ended);
    cpu_after = std::max(cpu_after, result.cpu_after);
    lengths.insert(lengths.end(), result.lengths.begin(), result.lengths.end());
    calls += result.calls;
  }
  RpcResult measured;
  measured.cpu_s = cpu_after - together.cpu_before();
  if (options.case_name == "idle") return measured;
  const double elapsed = duration<double>(ended - together.begun()).count();
  measured.calls_per_s = static_cast<double>(calls) / elapsed;
  if (options.case_name == "echo") {
    measured.bytes_per_s = *measured.calls_per_s * 2 * static_cast<double>(options.bytes);
  }
  if (!lengths.empty()) {
    measured.p50_us = at_fraction(lengths, 0.5);
    measured.p99_us = at_fraction(lengths, 0.99);
  }
  return measured;
}

void print(const RpcResult& result) {
  struct Field {
    const char* name;
    const std::optional<double>& value;
  };
  const std::array fields{Field{"p50_us", result.p50_us},
                          Field{"p99_us", result.p99_us},
                          Field{"calls_per_s", result.calls_per_s},
                          Field{"bytes_per_s", result.bytes_per_s},
                          Field{"cpu_s", result.cpu_s},
                          Field{"memory_bytes", result.memory_bytes}};
  std::string text;
  for (const Field& field : fields) {
    if (!field.value) continue;
    text += fmt::format("{}\"{}\": {:.9g}", text.empty() ? "" : ", ", field.name, *field.value);
  }
  fmt::print("{{{}}}\n", text);
  std::fflush(stdout);
}

void print_error(std::string_view what) {
  std::string text;
  for (const char each : what) {
    if (each == '"' || each == '\\') text += '\\';
    text += static_cast<unsigned char>(each) < ' ' ? ' ' : each;
  }
  fmt::print("{{\"error\": \"{}\"}}\n", text);
  std::fflush(stdout);
}

}  // namespace

int run_program(int argc, char** argv, const RpcProgram& program) {
  try {
    const RpcOptions options = parse(argc, argv);
    if (options.is_server) {
      program.serve(options);
      return 0;
    }
    std::optional<RpcResult> result;
    if (program.other) result = program.other(options);
    print(result ? *result : measure(options, program));
  } catch (const std::exception& error) {
    print_error(error.what());
    return 1;
  }
  return 0;
}

void announce(const std::string& address) {
  fmt::print("listening {}\n", address);
  std::fflush(stdout);
}

void wait_for_end_of_input() {
  std::array<char, 64> ignored{};
  while (::read(STDIN_FILENO, ignored.data(), ignored.size()) > 0) {
  }
}

void exit_at_end_of_input() {
  std::thread([] {
    wait_for_end_of_input();
    ::_exit(0);
  }).detach();
}

std::string unix_socket_path() {
  const char* folder = std::getenv("TMPDIR");
  return fmt::format("{}/rpc-{}.socket", folder != nullptr ? folder : "/tmp", ::getpid());
}

double process_cpu_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

double seconds_since(RpcClock::time_point begun) {
  return duration<double>(RpcClock::now() - begun).count();
}

}  // namespace muster::bench
