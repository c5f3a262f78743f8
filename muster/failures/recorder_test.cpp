#include "muster/failures/recorder.h"

#include "muster/failures/error_file.h"
#include "muster/failures/recorder_c.h"
#include "muster/failures/temporary_folder_test.h"

#include <gtest/gtest.h>

#include <csignal>
#include <exception>
#include <stdexcept>
#include <stdlib.h>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace muster::failures {
namespace {

using namespace std::string_literals;

// Each test runs the recorder in a forked process, because it changes the process for good.
class Recorder : public ::testing::Test {
 protected:
  // Runs `work` in a process of its own that has an error file; its exit code, negative for a
  // signal.
  template <typename Work>
  int run(Work&& work) {
    const pid_t child = ::fork();
    if (child == 0) {
      // No core files, nothing on the terminal, and no handlers of a sanitizer.
      const rlimit none{};
      ::setrlimit(RLIMIT_CORE, &none);
      ::close(STDERR_FILENO);
      for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::signal(signal, SIG_DFL);
      ::setenv(kErrorFileVariable, (folder_ / "error.json").c_str(), 1);
      ::alarm(60);  // nothing here can take long
      work();
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }
  ErrorDetails details() const { return read_error_file(folder_ / "error.json"); }

  TemporaryFolder folder_;
};

[[noreturn]] void fail_with_nested_exceptions() {
  try {
    throw std::invalid_argument("inner");
  } catch (...) {
    std::throw_with_nested(std::runtime_error("outer"));
  }
}

// Needs four kilobytes a step.
int use_up_the_stack(int depth) {
  if (depth == 0) return 0;
  volatile char page[4096];
  page[depth % 4096] = 1;
  return use_up_the_stack(depth - 1) + page[0];
}

TEST_F(Recorder, RecordsAnExceptionAndLetsItGoOn) {
  const int code = run([] {
    try {
      record([]() -> int { throw std::runtime_error("no \"luck\""); });
    } catch (const std::runtime_error&) {
      ::_exit(7);
    }
  });
  EXPECT_EQ(code, 7);
  EXPECT_EQ(details().shape, ErrorFileShape::Structured);
  EXPECT_TRUE(details().complete);
  EXPECT_EQ(details().message, "std::runtime_error: no \"luck\"");
  EXPECT_GT(details().timestamp_nanoseconds, 0);
  EXPECT_EQ(folder_.file_count(), 1U);
}

TEST_F(Recorder, GivesBackWhatTheWorkGives) {
  EXPECT_EQ(run([] { ::_exit(record([] { return 42; })); }), 42);
  EXPECT_EQ(run([] { record([] {}); }), 0);
  EXPECT_EQ(details().shape, ErrorFileShape::Missing);
}

TEST_F(Recorder, NamesTheCausesOfANestedException) {
  run([] {
    try {
      record(fail_with_nested_exceptions);
    } catch (...) {
    }
  });
  EXPECT_EQ(details().message, "std::runtime_error: outer");
  EXPECT_EQ(details().traceback,
            "std::runtime_error: outer\ncaused by std::invalid_argument: inner");
}

TEST_F(Recorder, DescribesExceptionsOfAnyType) {
  const auto message_of_thrown = [this](auto thrown) {
    run([&thrown] {
      try {
        record([&thrown]() { throw thrown; });
      } catch (...) {
      }
    });
    return details().message;
  };
  EXPECT_EQ(message_of_thrown(17), "int");
  EXPECT_EQ(message_of_thrown("text"), "const char*: text");
  EXPECT_EQ(message_of_thrown(std::string("text")), "std::string: text");
}

TEST_F(Recorder, RecordsAnExceptionThatNobodyCatches) {
  const int code = run([] {
    install_recorder();
    std::thread([] { throw std::logic_error("in a thread"); }).join();
  });
  EXPECT_EQ(code, -SIGABRT);
  EXPECT_TRUE(details().complete);
  EXPECT_EQ(details().message, "std::logic_error: in a thread");
  EXPECT_TRUE(details().traceback.starts_with("std::logic_error: in a thread\n"));
  EXPECT_NE(details().traceback.find("[0x"), std::string::npos) << details().traceback;
}

TEST_F(Recorder, RunsTheProgramsOwnTerminateHandler) {
  const int code = run([] {
    std::set_terminate([] { ::_exit(9); });
    install_recorder();
    std::terminate();
  });
  EXPECT_EQ(code, 9);
  EXPECT_EQ(details().message, "std::terminate was called without an exception");
}

TEST_F(Recorder, RecordsFatalSignalsAndDiesByThem) {
  struct Case {
    int signal;
    const char* message;
  };
  for (const Case& one :
       {Case{SIGSEGV, "SIGSEGV: invalid memory access"}, Case{SIGBUS, "SIGBUS: bad memory access"},
        Case{SIGFPE, "SIGFPE: arithmetic error"}, Case{SIGILL, "SIGILL: illegal instruction"},
        Case{SIGABRT, "SIGABRT: the program aborted"}, Case{SIGSYS, "SIGSYS: bad system call"}}) {
    EXPECT_EQ(run([&one] {
                install_recorder();
                ::raise(one.signal);
              }),
              -one.signal);
    EXPECT_EQ(details().message, one.message);
    EXPECT_TRUE(details().complete);
    EXPECT_TRUE(details().traceback.starts_with(one.message + "\n"s));
  }
  EXPECT_EQ(folder_.file_count(), 1U);
}

TEST_F(Recorder, SaysWhereMemoryWasTouched) {
  const int code = run([] {
    install_recorder();
    volatile std::uintptr_t address = 0x10;
    *reinterpret_cast<volatile int*>(address) = 1;  // NOLINT: that is the point
  });
  EXPECT_EQ(code, -SIGSEGV);
  EXPECT_EQ(details().message, "SIGSEGV: invalid memory access at address 0x10");
}

TEST_F(Recorder, SaysThatSomebodyElseSentTheSignal) {
  const int code = run([] {
    install_recorder();
    if (::fork() == 0) {
      ::kill(::getppid(), SIGSEGV);
      ::_exit(0);
    }
    while (true) ::pause();
  });
  EXPECT_EQ(code, -SIGSEGV);
  EXPECT_TRUE(details().message.starts_with("SIGSEGV: invalid memory access, sent by process "))
      << details().message;
}

TEST_F(Recorder, LeavesTheProgramsOwnSignalHandlersAlone) {
  const int code = run([] {
    ::signal(SIGSEGV, [](int) { ::_exit(8); });
    install_recorder();
    ::raise(SIGSEGV);
  });
  EXPECT_EQ(code, 8);
  EXPECT_EQ(details().shape, ErrorFileShape::Missing);
}

TEST_F(Recorder, LeavesSignalsAloneWhenTold) {
  EXPECT_EQ(run([] {
              install_recorder({.fatal_signals = false});
              ::raise(SIGSEGV);
            }),
            -SIGSEGV);
  EXPECT_EQ(details().shape, ErrorFileShape::Missing);
}

TEST_F(Recorder, RecordsAStackThatRanOut) {
  EXPECT_EQ(run([] {
              const rlimit small{256 << 10, 256 << 10};
              ::setrlimit(RLIMIT_STACK, &small);
              // The sanitizers bring a stack for signals of their own; this is about ours.
              const stack_t none{nullptr, SS_DISABLE, 0};
              ::sigaltstack(&none, nullptr);
              install_recorder();
              use_up_the_stack(1'000'000);
            }),
            -SIGSEGV);
  EXPECT_TRUE(details().message.starts_with("SIGSEGV: invalid memory access at address 0x"))
      << details().message;
}

TEST_F(Recorder, DoesNotWriteForAForkedChild) {
  const int code = run([] {
    install_recorder();
    const pid_t child = ::fork();
    if (child == 0) {
      record_error("not mine");
      ::raise(SIGSEGV);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ::_exit(WTERMSIG(status));
  });
  EXPECT_EQ(code, SIGSEGV);
  EXPECT_EQ(details().shape, ErrorFileShape::Missing);
}

TEST_F(Recorder, WritesNothingWhenNobodyAsks) {
  for (const char* name : {"", static_cast<const char*>(nullptr)}) {
    const int code = run([name] {
      if (name == nullptr) {
        ::unsetenv(kErrorFileVariable);
      } else {
        ::setenv(kErrorFileVariable, name, 1);
      }
      install_recorder();
      ::_exit(record_error("x") ? 1 : 5);
    });
    EXPECT_EQ(code, 5);
  }
  EXPECT_EQ(folder_.file_count(), 0U);
}

TEST_F(Recorder, ReportsThatTheFileCannotBeWritten) {
  EXPECT_EQ(run([this] {
              ::setenv(kErrorFileVariable, (folder_ / "none/error.json").c_str(), 1);
              ::_exit(record_error("x") ? 1 : 5);
            }),
            5);
  EXPECT_EQ(run([] {
              ::setenv(kErrorFileVariable, std::string(100'000, 'x').c_str(), 1);
              ::_exit(record_error("x") ? 1 : 5);
            }),
            5);
}

TEST_F(Recorder, FindsARelativeNameAfterTheProgramMovedAway) {
  EXPECT_EQ(run([this] {
              ::setenv(kErrorFileVariable, "error.json", 1);
              if (::chdir(folder_.path().c_str()) != 0) ::_exit(1);
              install_recorder();
              if (::chdir("/") != 0) ::_exit(1);
              ::raise(SIGSEGV);
            }),
            -SIGSEGV);
  EXPECT_EQ(details().message, "SIGSEGV: invalid memory access");
}

TEST_F(Recorder, WritesAnyTextAsValidJson) {
  const std::string text = "\0\x01\x1f \"\\/\n\t\xff \u00e4"s + std::string(5000, 'x');
  EXPECT_EQ(run([&text] { ::_exit(record_error(text, text) ? 0 : 1); }), 0);
  EXPECT_TRUE(details().complete);
  EXPECT_EQ(details().message.size(), text.size() + 2);  // one byte became U+FFFD
  EXPECT_EQ(details().message, details().traceback);
}

TEST_F(Recorder, IsThereForProgramsInC) {
  EXPECT_EQ(run([] {
              muster_install_recorder();
              ::_exit(muster_record_error("from C", nullptr));
            }),
            1);
  EXPECT_EQ(details().message, "from C");
  EXPECT_EQ(details().traceback, "");
}

}  // namespace
}  // namespace muster::failures
