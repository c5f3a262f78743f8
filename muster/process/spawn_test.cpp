#include "muster/process/spawn.h"

#include "muster/process/test_support.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

namespace muster::process {
namespace {

using internal::candidates;
using internal::explain;
using internal::Stage;

class SpawnTest : public HostTest {
 protected:
  SpawnTest() {
    std::string pattern = testing::TempDir() + "muster-spawn-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~SpawnTest() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& content, mode_t mode) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << content;
    ::chmod(path.c_str(), mode);
    return path;
  }
  // The message, without what it has in common with all others.
  std::string refusal(const Command& command) {
    auto process = host_->start(command, [](Exit) { ADD_FAILURE() << "it never ran"; });
    if (process) return "it was started";
    // A failed start leaves nothing behind.
    siginfo_t info{};
    EXPECT_EQ(::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT), -1);
    EXPECT_EQ(errno, ECHILD);
    return process.error().message;
  }
  std::string refusal(const std::string& executable) {
    Command command;
    command.executable = executable;
    command.arguments = {executable};
    command.environment = {"PATH=/usr/bin:/bin"};
    return refusal(command);
  }

  std::string folder_;
};

TEST(Spawn, SearchesANameInThePathOfTheEnvironment) {
  using List = std::vector<std::string>;
  EXPECT_EQ(candidates("x", {"A=1", "PATH=/a:/b"}), (List{"/a/x", "/b/x"}));
  EXPECT_EQ(candidates("x", {"PATH=:/b:"}), (List{"./x", "/b/x", "./x"}));
  EXPECT_EQ(candidates("x", {}), (List{"/usr/local/bin/x", "/usr/bin/x", "/bin/x"}));
  EXPECT_EQ(candidates("./x", {"PATH=/a"}), (List{"./x"}));
  EXPECT_EQ(candidates("", {"PATH=/a"}), List());
}

TEST(Spawn, SaysWhatToDoAboutEachShortage) {
  Command command;
  command.executable = "train";
  EXPECT_EQ(explain(command, Stage::Clone, EAGAIN).kind, ErrorKind::Unavailable);
  EXPECT_NE(explain(command, Stage::Clone, EAGAIN).message.find("ulimit -u"), std::string::npos);
  EXPECT_NE(explain(command, Stage::Clone, EMFILE).message.find("ulimit -n"), std::string::npos);
  EXPECT_NE(explain(command, Stage::Execute, E2BIG).message.find("too large"), std::string::npos);
  EXPECT_NE(explain(command, Stage::Memory, EPERM).message.find("CAP_SYS_NICE"), std::string::npos);
}

TEST_F(SpawnTest, RefusesWhatIsNotFound) {
  EXPECT_EQ(refusal("no-such-program"),
            "cannot start \"no-such-program\": not found in PATH; install it, or give its path");
  EXPECT_EQ(refusal("./no-such-program"),
            "cannot start \"./no-such-program\": no such file; check the path");
  EXPECT_EQ(refusal(""), "cannot start \"\": no program was named");
}

TEST_F(SpawnTest, PointsToAFileInThisFolderThatIsNotInThePath) {
  file("train.sh", "#!/bin/sh\n", 0755);
  Command command;
  command.executable = "train.sh";
  command.arguments = {"train.sh"};
  command.environment = {"PATH=/usr/bin:/bin"};
  command.folder = folder_;
  EXPECT_EQ(refusal(command),
            "cannot start \"train.sh\": not found in PATH; write ./train.sh for the one in this "
            "folder");
}

TEST_F(SpawnTest, RefusesWhatCannotBeExecuted) {
  EXPECT_NE(refusal(file("plain", "#!/bin/sh\n", 0644)).find("not executable; run: chmod +x"),
            std::string::npos);
  EXPECT_NE(refusal(file("garbage", "\x01\x02\x03\n", 0755)).find("exec format error"),
            std::string::npos);
  EXPECT_NE(refusal(file("lost", "#!/no/such/interpreter\n", 0755))
                .find("its interpreter \"/no/such/interpreter\" does not exist"),
            std::string::npos);
  EXPECT_NE(refusal(file("dos", "#!/bin/sh\r\necho\r\n", 0755)).find("carriage return"),
            std::string::npos);
  EXPECT_NE(refusal(folder_).find("it is a folder"), std::string::npos);
}

TEST_F(SpawnTest, RefusesAFolderThatDoesNotExist) {
  Command command = shell("true");
  command.folder = folder_ + "/nowhere";
  EXPECT_NE(refusal(command).find("cannot enter its folder"), std::string::npos);
}

TEST_F(SpawnTest, ExplainsTheDescriptorLimit) {
  if (kSanitized) GTEST_SKIP() << "not applicable: UBSan itself needs descriptors";
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const Fd highest(::dup(out_.writer()));
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(highest.get()) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  const std::string message = refusal(shell("true"));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_NE(message.find("no file descriptor is left"), std::string::npos) << message;
  EXPECT_EQ(code_of("exit 0"), 0);
}

TEST_F(SpawnTest, FindsTheProgramInThePathOfTheWorkerAndNotInOurs) {
  file("muster-test-tool", "#!/bin/sh\necho found in $PWD $1\n", 0755);
  Command command;
  command.executable = "muster-test-tool";
  command.arguments = {"tool", "argument"};
  command.environment = {"PATH=/usr/bin:" + folder_};
  command.folder = "/";
  EXPECT_EQ(output_of(command), "found in / argument\n");
}

TEST_F(SpawnTest, PassesTheEnvironmentAndReplacesOnlyTheToken) {
  Command command;
  command.executable = "env";
  command.arguments = {"env"};
  command.environment = {"PATH=/usr/bin:/bin", "MUSTER_WORKER_TOKEN=stale", "EMPTY="};
  EXPECT_EQ(output_of(command),
            "MUSTER_WORKER_TOKEN=" + host_->id() + ".1\nPATH=/usr/bin:/bin\nEMPTY=\n");
}

TEST_F(SpawnTest, ClosesEveryDescriptorAboveTwo) {
  const Fd open_for_all(::fcntl(out_.writer(), F_DUPFD, 57));
  ASSERT_EQ(open_for_all.get(), 57);
  EXPECT_EQ(output_of(shell("for fd in 3 4 5 6 7 8 9 57; do "
                            "[ -e /proc/$$/fd/$fd ] && readlink /proc/$$/fd/$fd; done; echo end")),
            "end\n");
}

TEST_F(SpawnTest, CopiesDescriptorsThatLieInEachOthersPlaces) {
  Pipe in;
  ASSERT_EQ(::write(in.writer(), "hello\n", 6), 6);
  in.close_writer();
  const Fd zero(::fcntl(0, F_DUPFD_CLOEXEC, 10));
  ASSERT_EQ(::dup2(out_.writer(), 0), 0);
  Command command = shell("echo out; echo error >&2");
  command.output = 0;
  command.error = 0;
  auto worker = start(command);
  zero.is_open() ? ::dup2(zero.get(), 0) : ::close(0);
  EXPECT_EQ(out_.rest(), "out\nerror\n");
  EXPECT_EQ(wait(*worker).code, 0);
}

TEST_F(SpawnTest, ResetsSignalMaskAndDispositions) {
  ::signal(SIGUSR1, SIG_IGN);
  sigset_t blocked;
  sigset_t before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  Command command;
  command.executable = "/bin/grep";
  command.arguments = {"grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"};
  command.environment = own_environment();
  const std::string status = output_of(command);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::signal(SIGUSR1, SIG_DFL);
  EXPECT_EQ(status, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

TEST_F(SpawnTest, RunsOnTheCpusItWasGiven) {
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(static_cast<std::size_t>(cpu), &allowed)) continue;
    Command command = shell("grep Cpus_allowed_list /proc/self/status");
    command.placement.cpus = {cpu};
    EXPECT_EQ(output_of(command), "Cpus_allowed_list:\t" + std::to_string(cpu) + "\n");
  }
  Command command = shell("true");
  command.placement.cpus = {kCpuCountMax - 1};
  EXPECT_NE(refusal(command).find("cannot run on the CPUs 8191"), std::string::npos);
  command.placement.cpus = {kCpuCountMax};
  EXPECT_NE(refusal(command).find("cannot run on the CPUs 8192"), std::string::npos);
  command.placement.cpus = {-1};
  EXPECT_NE(refusal(command).find("cannot run on the CPUs -1"), std::string::npos);
}

TEST_F(SpawnTest, TakesMemoryFromTheNodesItWasGiven) {
  if (::syscall(SYS_set_mempolicy, 0, nullptr, 0) != 0) {
    GTEST_SKIP() << "this kernel or container has no memory policies: " << ::strerror(errno);
  }
  if (::access("/proc/self/numa_maps", R_OK) != 0) GTEST_SKIP() << "no /proc/self/numa_maps";
  Command command = shell("head -n 1 /proc/self/numa_maps");
  command.placement.nodes = {0};
  EXPECT_NE(output_of(command).find(" default "), std::string::npos);
  command.placement.memory = Placement::Memory::Bind;
  EXPECT_NE(output_of(command).find(" bind:0 "), std::string::npos);
  command.placement.memory = Placement::Memory::Prefer;
  EXPECT_NE(output_of(command).find(" prefer:0 "), std::string::npos);
  command.placement.nodes = {kNodeCountMax - 1};
  command.placement.memory = Placement::Memory::Bind;
  EXPECT_NE(refusal(command).find("cannot take memory from the NUMA nodes 1023"),
            std::string::npos);
}

}  // namespace
}  // namespace muster::process
