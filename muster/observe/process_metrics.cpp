// What /proc says about this process, under the names that Prometheus' own clients use.
#include "muster/base/fd.h"
#include "muster/observe/agent_metrics.h"
#include "muster/observe/metrics.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <string>
#include <string_view>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

namespace muster::observe {
namespace {

std::string read_small_file(const char* path) {
  const Fd fd(::open(path, O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> buffer{};
  const ssize_t got = fd.is_open() ? ::read(fd.get(), buffer.data(), buffer.size()) : 0;
  return {buffer.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
}

double to_number(std::string_view text) {
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return static_cast<double>(value);
}

// The fields of /proc/self/stat behind the name, which may hold spaces and parentheses itself: the
// first one is field 3 of the manual page, the state.
std::vector<std::string_view> fields_of_stat(std::string_view stat) {
  std::vector<std::string_view> fields;
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string_view::npos) return fields;
  stat.remove_prefix(name_end + 1);
  while (!stat.empty()) {
    const std::size_t begin = stat.find_first_not_of(" \n");
    if (begin == std::string_view::npos) break;
    stat.remove_prefix(begin);
    const std::size_t end = stat.find_first_of(" \n");
    fields.push_back(stat.substr(0, end));
    stat.remove_prefix(end == std::string_view::npos ? stat.size() : end);
  }
  return fields;
}

double boot_time() {
  const std::string stat = read_small_file("/proc/uptime");
  double uptime = 0;
  std::from_chars(stat.data(), stat.data() + stat.size(), uptime);
  return static_cast<double>(wall_nanoseconds()) / 1e9 - uptime;
}

int count_descriptors() {
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  int count = 0;
  while (const dirent* entry = ::readdir(folder)) {
    if (entry->d_name[0] != '.') ++count;
  }
  ::closedir(folder);
  return count - 1;  // the one we look with
}

// Field numbers of the manual page proc(5).
constexpr std::size_t kFirstField = 3;
constexpr std::size_t kUserTime = 14;
constexpr std::size_t kSystemTime = 15;
constexpr std::size_t kThreads = 20;
constexpr std::size_t kStartTime = 22;
constexpr std::size_t kVirtualBytes = 23;
constexpr std::size_t kResidentPages = 24;

}  // namespace

void add_process_metrics(Registry& registry) {
  Counter& cpu = registry.counter("process_cpu_seconds_total", "CPU time of the agent itself.");
  Gauge& resident =
      registry.gauge("process_resident_memory_bytes", "Memory of the agent itself that is in RAM.");
  Gauge& virtual_memory =
      registry.gauge("process_virtual_memory_bytes", "Address space of the agent itself.");
  Gauge& open_fds = registry.gauge("process_open_fds", "Descriptors that the agent holds.");
  Gauge& max_fds = registry.gauge("process_max_fds", "Descriptors that the agent may hold.");
  Gauge& threads = registry.gauge("process_threads", "Threads of the agent itself.");
  Gauge& start = registry.gauge("process_start_time_seconds",
                                "When the agent was started, in seconds since 1970.");
  const double boot = boot_time();
  registry.before_text(
      [=, &cpu, &resident, &virtual_memory, &open_fds, &max_fds, &threads, &start] {
        const std::string stat = read_small_file("/proc/self/stat");
        const auto fields = fields_of_stat(stat);
        const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
        if (fields.size() + kFirstField > kResidentPages) {
          const auto field = [&](std::size_t number) {
            return to_number(fields[number - kFirstField]);
          };
          cpu.advance_to((field(kUserTime) + field(kSystemTime)) / ticks);
          threads.set(field(kThreads));
          start.set(boot + field(kStartTime) / ticks);
          virtual_memory.set(field(kVirtualBytes));
          resident.set(field(kResidentPages) * static_cast<double>(::sysconf(_SC_PAGESIZE)));
        }
        open_fds.set(count_descriptors());
        rlimit limit{};
        if (::getrlimit(RLIMIT_NOFILE, &limit) == 0)
          max_fds.set(static_cast<double>(limit.rlim_cur));
      });
}

}  // namespace muster::observe
