// The bytes of PyTorch clients and what they must be answered, from end to end through the Hub.
//
// Each test is one conversation, as text: `A> ...` is what client A sends, `A< ...` what it must
// have received by then, in full. A `|` is where the client was seen to cut its writes. Whatever a
// conversation does not mention must not be sent, so every client must have read everything before
// anyone sends again. Every conversation is held three times: cut as noted, line by line, and byte
// by byte.
#include "muster/store/hub.h"
#include "tests/fuzz/peer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace muster::store {
namespace {

using tests::Peer;

std::string trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \n");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \n") + 1 - first));
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::size_t start = 0;
  while (start <= text.size()) {
    const std::size_t end = std::min(text.find(separator, start), text.size());
    parts.push_back(trimmed(text.substr(start, end - start)));
    start = end + 1;
  }
  return parts;
}

std::string from_hexadecimal(std::string_view text) {
  std::string bytes;
  for (const std::string& digits : split(text, ' ')) {
    for (std::size_t index = 0; index + 1 < digits.size(); index += 2) {
      bytes.push_back(static_cast<char>(std::stoi(digits.substr(index, 2), nullptr, 16)));
    }
  }
  return bytes;
}

std::string to_hexadecimal(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x} ", static_cast<unsigned char>(byte));
  return trimmed(text);
}

enum class Cut { AsSeen, ByLine, ByByte };

class Conversation {
 public:
  Conversation(std::string_view text, Cut cut) : cut_(cut) {
    for (const std::string& line : split(text, '\n')) {
      if (line.empty() || line.starts_with('#')) continue;
      SCOPED_TRACE(line);
      const std::string name = line.substr(0, 1);
      const std::string rest = trimmed(line.substr(2));
      if (line[1] == '>') {
        expect_silence();
        say(client(name), rest);
      } else if (rest == "(closed)") {
        EXPECT_TRUE(client(name).closed());
        EXPECT_EQ(to_hexadecimal(client(name).read()), "");
        clients_.erase(name);
      } else {
        EXPECT_EQ(to_hexadecimal(client(name).read()), to_hexadecimal(from_hexadecimal(rest)));
      }
    }
    expect_silence();
  }

 private:
  Peer& client(const std::string& name) { return clients_.try_emplace(name, hub_).first->second; }

  void say(Peer& client, const std::string& text) {
    if (text == "(closes)") return client.close();
    for (const std::string& piece : split(text, cut_ == Cut::AsSeen ? '|' : '\0')) {
      std::string bytes;
      for (const std::string& part : split(piece, '|')) bytes += from_hexadecimal(part);
      if (cut_ != Cut::ByByte) {
        client.send(bytes);
        continue;
      }
      for (const char byte : bytes) client.send({&byte, 1});
    }
  }

  void expect_silence() {
    for (auto& [name, client] : clients_) {
      EXPECT_EQ(to_hexadecimal(client.read()), "") << "at client " << name;
      EXPECT_FALSE(client.close_reason().size() > 0) << client.close_reason();
    }
  }

  const Cut cut_;
  Hub hub_{HubOptions{}};
  std::map<std::string, Peer> clients_;
};

void hold(std::string_view text) {
  for (const Cut cut : {Cut::AsSeen, Cut::ByLine, Cut::ByByte}) {
    SCOPED_TRACE(cut == Cut::AsSeen ? "cut as seen" : cut == Cut::ByLine ? "by line" : "by byte");
    const Conversation held(text, cut);
  }
}

// --- Captured from a client of PyTorch 2.11.0 ----------------------------------------------------

TEST(PyTorch211, ShakesHandsAndSets) {
  hold(R"(
    # Its process id comes back.
    A> 00 ce f7 85 3c | 0d 39 30 00 00
    A< 39 30 00 00
    A> 01 02 00 00 00 00 00 00 00 2f 6b 01 00 00 00 00 00 00 00 76
    A> 03 02 00 00 00 00 00 00 00 2f 6b
    A< 01 00 00 00 00 00 00 00 76
  )");
}

// --- Captured from clients of PyTorch 1.13.1 -----------------------------------------------------

TEST(PyTorch113, CountsItselfInWhenItIsConstructed) {
  hold(R"(
    # One worker is there already.
    B> 03 | 05 00 00 00 00 00 00 00  69 6e 69 74 2f  01 00 00 00 00 00 00 00
    B< 01 00 00 00 00 00 00 00
    A> 03 | 05 00 00 00 00 00 00 00  69 6e 69 74 2f  01 00 00 00 00 00 00 00
    A< 02 00 00 00 00 00 00 00
  )");
}

TEST(PyTorch113, SetsAndGets) {
  hold(R"(
    A> 00 | 02 00 00 00 00 00 00 00  2f 6b  02 00 00 00 00 00 00 00  76 31
    A> 05 | 01 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00  2f 6b
    A< 00
    A> 02 | 02 00 00 00 00 00 00 00  2f 6b
    A< 02 00 00 00 00 00 00 00  76 31
  )");
}

TEST(PyTorch113, AddsAndGetsTheSumAsText) {
  hold(R"(
    A> 03 | 04 00 00 00 00 00 00 00  2f 63 6e 74  05 00 00 00 00 00 00 00
    A< 05 00 00 00 00 00 00 00
    A> 03 | 04 00 00 00 00 00 00 00  2f 63 6e 74  f9 ff ff ff ff ff ff ff
    A< fe ff ff ff ff ff ff ff
    A> 02 | 04 00 00 00 00 00 00 00  2f 63 6e 74
    A< 02 00 00 00 00 00 00 00  2d 32
  )");
}

TEST(PyTorch113, ComparesAndSetsInAllFourCases) {
  hold(R"(
    # Absent, expected empty: stored.
    A> 01 | 03 00 00 00 00 00 00 00  2f 63 73  00 00 00 00 00 00 00 00  05 00 00 00 00 00 00 00  66 69 72 73 74
    A< 05 00 00 00 00 00 00 00  66 69 72 73 74
    # Equal: stored.
    A> 01 | 03 00 00 00 00 00 00 00  2f 63 73  05 00 00 00 00 00 00 00  66 69 72 73 74  06 00 00 00 00 00 00 00  73 65 63 6f 6e 64
    A< 06 00 00 00 00 00 00 00  73 65 63 6f 6e 64
    # Different: the present value.
    A> 01 | 03 00 00 00 00 00 00 00  2f 63 73  04 00 00 00 00 00 00 00  6e 6f 70 65  05 00 00 00 00 00 00 00  74 68 69 72 64
    A< 06 00 00 00 00 00 00 00  73 65 63 6f 6e 64
    # Absent, expected not empty: what was expected comes back, and nothing is stored.
    A> 01 | 04 00 00 00 00 00 00 00  2f 63 73 32  02 00 00 00 00 00 00 00  78 78  02 00 00 00 00 00 00 00  79 79
    A< 02 00 00 00 00 00 00 00  78 78
    A> 06
    A< 01 00 00 00 00 00 00 00
  )");
}

TEST(PyTorch113, ChecksTwoKeysBeforeAndAfterBothWereSet) {
  hold(R"(
    A> 04 | 02 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00  2f 61  02 00 00 00 00 00 00 00  2f 62
    A< 01
    B> 00 | 02 00 00 00 00 00 00 00  2f 61  01 00 00 00 00 00 00 00  31
    B> 00 | 02 00 00 00 00 00 00 00  2f 62  01 00 00 00 00 00 00 00  32
    A> 04 | 02 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00  2f 61  02 00 00 00 00 00 00 00  2f 62
    A< 00
  )");
}

TEST(PyTorch113, WaitsForTwoPresentKeysAndForNone) {
  hold(R"(
    B> 00 | 02 00 00 00 00 00 00 00  2f 6b  02 00 00 00 00 00 00 00  76 31
    B> 03 | 04 00 00 00 00 00 00 00  2f 63 6e 74  05 00 00 00 00 00 00 00
    B< 05 00 00 00 00 00 00 00
    A> 05 | 02 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00  2f 6b  04 00 00 00 00 00 00 00  2f 63 6e 74
    A< 00
    A> 05 | 00 00 00 00 00 00 00 00
    A< 00
  )");
}

TEST(PyTorch113, CountsAndDeletesKeys) {
  hold(R"(
    B> 00 | 02 00 00 00 00 00 00 00  2f 6b  02 00 00 00 00 00 00 00  76 31
    B> 00 | 02 00 00 00 00 00 00 00  2f 61  01 00 00 00 00 00 00 00  31
    B> 00 | 02 00 00 00 00 00 00 00  2f 62  01 00 00 00 00 00 00 00  32
    A> 06
    A< 03 00 00 00 00 00 00 00
    A> 08 | 02 00 00 00 00 00 00 00  2f 6b
    A< 01 00 00 00 00 00 00 00
    A> 08 | 02 00 00 00 00 00 00 00  2f 6b
    A< 00 00 00 00 00 00 00 00
  )");
}

TEST(PyTorch113, SeesAStrayByteWhenItsWaitEndsBeforeItAsksAgain) {
  hold(R"(
    A> 05 | 01 00 00 00 00 00 00 00  06 00 00 00 00 00 00 00  2f 6e 65 76 65 72
    # The client gives up without a word; then the key is set. Nobody could have known.
    B> 00 | 06 00 00 00 00 00 00 00  2f 6e 65 76 65 72  01 00 00 00 00 00 00 00  31
    A< 00
    A> 06
    A< 01 00 00 00 00 00 00 00
  )");
}

TEST(PyTorch113, KeepsItsRepliesInOrderWhenItAsksAgainBeforeItsWaitEnds) {
  hold(R"(
    A> 05 | 01 00 00 00 00 00 00 00  06 00 00 00 00 00 00 00  2f 6e 65 76 65 72
    # The client gives up and asks for something else: the wait is over for the server, too.
    A> 06
    A< 00 00 00 00 00 00 00 00
    B> 00 | 06 00 00 00 00 00 00 00  2f 6e 65 76 65 72  01 00 00 00 00 00 00 00  31
    A> 06
    A< 01 00 00 00 00 00 00 00
  )");
}

TEST(PyTorch113, SendsMuchInOneWrite) {
  hold(R"(
    # Five other keys.
    B> 00 01 00 00 00 00 00 00 00 61 00 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 62 00 00 00 00 00 00 00 00
    B> 00 01 00 00 00 00 00 00 00 63 00 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 64 00 00 00 00 00 00 00 00
    B> 00 01 00 00 00 00 00 00 00 65 00 00 00 00 00 00 00 00
    # SET /p=1, ADD /p 4, GET /p, GETNUMKEYS, CHECK /p, CHECK /zz, WAIT /p, CHECK of nothing.
    A> 00 02 00 00 00 00 00 00 00 2f 70 01 00 00 00 00 00 00 00 31 03 02 00 00 00 00 00 00 00 2f 70 04 00 00 00 00 00 00 00 02 02 00 00 00 00 00 00 00 2f 70 06 04 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 70 04 01 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 2f 7a 7a 05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 70 04 00 00 00 00 00 00 00 00
    A< 05 00 00 00 00 00 00 00   01 00 00 00 00 00 00 00 35   06 00 00 00 00 00 00 00   00   01   00   00
  )");
}

TEST(PyTorch113, WatchesAKeyOnItsSecondConnection) {
  hold(R"(
    A> 07 | 03 00 00 00 00 00 00 00  2f 77 6b
    A< 03
    B> 00 | 03 00 00 00 00 00 00 00  2f 77 6b  02 00 00 00 00 00 00 00  76 31
    A< 01  03 00 00 00 00 00 00 00 2f 77 6b  00 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00 76 31
    B> 00 | 03 00 00 00 00 00 00 00  2f 77 6b  02 00 00 00 00 00 00 00  76 32
    A< 00  03 00 00 00 00 00 00 00 2f 77 6b  02 00 00 00 00 00 00 00 76 31  02 00 00 00 00 00 00 00 76 32
    # v2 becomes v3 by COMPARE_SET, which is one more update.
    B> 01 | 03 00 00 00 00 00 00 00  2f 77 6b  02 00 00 00 00 00 00 00  76 32  02 00 00 00 00 00 00 00  76 33
    B< 02 00 00 00 00 00 00 00  76 33
    A< 00  03 00 00 00 00 00 00 00 2f 77 6b  02 00 00 00 00 00 00 00 76 32  02 00 00 00 00 00 00 00 76 33
    B> 08 | 03 00 00 00 00 00 00 00  2f 77 6b
    B< 01 00 00 00 00 00 00 00
    A< 02  03 00 00 00 00 00 00 00 2f 77 6b  02 00 00 00 00 00 00 00 76 33  00 00 00 00 00 00 00 00
    # Deleting what is not there changes nothing.
    B> 08 | 03 00 00 00 00 00 00 00  2f 77 6b
    B< 00 00 00 00 00 00 00 00
  )");
}

TEST(PyTorch113, GetsAnEmptyValueForAnAbsentKey) {
  hold(R"(
    # A server of 1.13 would close here.
    A> 02 | 05 00 00 00 00 00 00 00  2f 6e 6f 70 65
    A< 00 00 00 00 00 00 00 00
  )");
}

TEST(PyTorch113, IsClosedWhenItAddsToText) {
  hold(R"(
    A> 00 | 02 00 00 00 00 00 00 00  2f 6b  02 00 00 00 00 00 00 00  76 31
    A> 03 | 02 00 00 00 00 00 00 00  2f 6b  01 00 00 00 00 00 00 00
    A< (closed)
    # Nothing has changed, and nobody else has noticed.
    B> 02 | 02 00 00 00 00 00 00 00  2f 6b
    B< 02 00 00 00 00 00 00 00  76 31
  )");
}

TEST(PyTorch113, IsClosedAtAnOpcodeThatItsDialectDoesNotHave) {
  for (int opcode = 0x09; opcode <= 0xff; ++opcode) {
    hold(fmt::format(R"(
      A> 06
      A< 00 00 00 00 00 00 00 00
      A> {:02x}
      A< (closed)
    )",
                     opcode));
  }
}

TEST(PyTorch113, IsClosedAtAnOpcodeThatItsDialectDoesNotHaveAlsoAtFirst) {
  for (int opcode = 0x09; opcode <= 0xff; ++opcode) {
    hold(fmt::format("A> {:02x}\nA< (closed)\n", opcode));
  }
}

// --- Clients of PyTorch 2.2 to 2.13, from their source -------------------------------------------

TEST(PyTorch2, ShakesHandsWithoutAndWithAPing) {
  hold(R"(
    A> 00 ce f7 85 3c
    B> 00 ce f7 85 3c | 0d db 58 2b 00
    B< db 58 2b 00
  )");
}

TEST(PyTorch2, CountsWorkersAndWaitsForThem) {
  hold(R"(
    A> 00 ce f7 85 3c
    A> 04  05 00 00 00 00 00 00 00  69 6e 69 74 2f  01 00 00 00 00 00 00 00
    A< 01 00 00 00 00 00 00 00
    A> 06  01 00 00 00 00 00 00 00  05 00 00 00 00 00 00 00  69 6e 69 74 2f
    A< 00
    A> 03  05 00 00 00 00 00 00 00  69 6e 69 74 2f
    A< 01 00 00 00 00 00 00 00  31
  )");
}

TEST(PyTorch2, SetsAndGets) {
  hold(R"(
    A> 00 ce f7 85 3c
    A> 01  02 00 00 00 00 00 00 00  2f 6b  02 00 00 00 00 00 00 00  76 31
    A> 06  01 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00  2f 6b
    A< 00
    A> 03  02 00 00 00 00 00 00 00  2f 6b
    A< 02 00 00 00 00 00 00 00  76 31
  )");
}

TEST(PyTorch2, ComparesAndSets) {
  hold(R"(
    A> 00 ce f7 85 3c
    A> 02  03 00 00 00 00 00 00 00  2f 63 73  00 00 00 00 00 00 00 00  05 00 00 00 00 00 00 00  66 69 72 73 74
    A< 05 00 00 00 00 00 00 00  66 69 72 73 74
  )");
}

TEST(PyTorch2, ChecksCountsAndDeletes) {
  hold(R"(
    B> 00 ce f7 85 3c
    B> 01  02 00 00 00 00 00 00 00  2f 6b  00 00 00 00 00 00 00 00
    B> 01  02 00 00 00 00 00 00 00  2f 6c  00 00 00 00 00 00 00 00
    B> 01  02 00 00 00 00 00 00 00  2f 6d  00 00 00 00 00 00 00 00
    A> 00 ce f7 85 3c
    A> 05  02 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00 2f 61  02 00 00 00 00 00 00 00 2f 62
    A< 01
    A> 07
    A< 03 00 00 00 00 00 00 00
    A> 08  02 00 00 00 00 00 00 00  2f 6b
    A< 01 00 00 00 00 00 00 00
  )");
}

TEST(PyTorch2, CancelsAWaitThatTimedOut) {
  hold(R"(
    A> 00 ce f7 85 3c
    A> 06  01 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00  2f 6b
    A> 0c
    A< 01
    # The connection is as good as before, and the key wakes nobody.
    B> 00 ce f7 85 3c
    B> 01  02 00 00 00 00 00 00 00  2f 6b  02 00 00 00 00 00 00 00  76 31
    A> 07
    A< 01 00 00 00 00 00 00 00
  )");
}

TEST(PyTorch2, CancelsAWaitThatEndedInTheSameMoment) {
  hold(R"(
    A> 00 ce f7 85 3c
    A> 06  01 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00  2f 6b
    B> 00 ce f7 85 3c
    B> 01  02 00 00 00 00 00 00 00  2f 6b  02 00 00 00 00 00 00 00  76 31
    A< 00
    A> 0c
    A< 01
  )");
}

TEST(PyTorch2, AppendsAndUsesSeveralKeysAtOnce) {
  hold(R"(
    A> 00 ce f7 85 3c
    A> 09  02 00 00 00 00 00 00 00 2f 6b  02 00 00 00 00 00 00 00 70 6f
    A> 03  02 00 00 00 00 00 00 00 2f 6b
    A< 02 00 00 00 00 00 00 00 70 6f
    A> 0b  02 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00 2f 61  01 00 00 00 00 00 00 00 31  02 00 00 00 00 00 00 00 2f 62  02 00 00 00 00 00 00 00 32 32
    A> 06  02 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00 2f 61  02 00 00 00 00 00 00 00 2f 62
    A< 00
    A> 0a  02 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00 2f 61  02 00 00 00 00 00 00 00 2f 62
    A< 01 00 00 00 00 00 00 00 31  02 00 00 00 00 00 00 00 32 32
  )");
}

TEST(PyTorch2, PushesAndPops) {
  hold(R"(
    A> 00 ce f7 85 3c
    A> 0e  02 00 00 00 00 00 00 00 2f 71  02 00 00 00 00 00 00 00 78 79
    A> 10  02 00 00 00 00 00 00 00 2f 71
    A< 01 00 00 00 00 00 00 00
    A> 0f  02 00 00 00 00 00 00 00 2f 71
    A< 01 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00 78 79
    A> 0f  02 00 00 00 00 00 00 00 2f 71
    A< 00 00 00 00 00 00 00 00
  )");
}

TEST(PyTorch2, ListsKeys) {
  hold(R"(
    A> 00 ce f7 85 3c
    A> 04  05 00 00 00 00 00 00 00  69 6e 69 74 2f  01 00 00 00 00 00 00 00
    A< 01 00 00 00 00 00 00 00
    A> 01  02 00 00 00 00 00 00 00  2f 6b  02 00 00 00 00 00 00 00  76 31
    # PyTorch promises no order; ours is that of the bytes.
    A> 11
    A< 02 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00 2f 6b  05 00 00 00 00 00 00 00 69 6e 69 74 2f
  )");
}

TEST(PyTorch2, MeetsAtABarrier) {
  hold(R"(
    A> 00 ce f7 85 3c
    A> 12  02 00 00 00 00 00 00 00 2f 62  02 00 00 00 00 00 00 00
    B> 00 ce f7 85 3c
    B> 12  02 00 00 00 00 00 00 00 2f 62  02 00 00 00 00 00 00 00
    A< 00
    B< 00
  )");
}

TEST(PyTorch2, IsFoundOutWithTheProbeOfAnUnsureClient) {
  hold(R"(
    B> 00 ce f7 85 3c
    B> 01  02 00 00 00 00 00 00 00  2f 6b  00 00 00 00 00 00 00 00
    B> 01  02 00 00 00 00 00 00 00  2f 6c  00 00 00 00 00 00 00 00
    B> 01  02 00 00 00 00 00 00 00  2f 6d  00 00 00 00 00 00 00 00
    A> 00 ce f7 85 3c 07 07 07 07
    A< 03 00 00 00 00 00 00 00  03 00 00 00 00 00 00 00  03 00 00 00 00 00 00 00  03 00 00 00 00 00 00 00
  )");
}

TEST(PyTorch2, IsClosedAtAnOpcodeThatItsDialectDoesNotHave) {
  for (int opcode = 0x13; opcode <= 0xff; ++opcode) {
    if (opcode == 0x80) continue;  // the way into Muster's extension
    hold(fmt::format("A> 00 ce f7 85 3c\nA> {:02x}\nA< (closed)\n", opcode));
  }
}

TEST(PyTorch2, IsClosedWhenItValidatesTwice) {
  hold(R"(
    A> 00 ce f7 85 3c
    A> 00 ce f7 85 3c
    A< (closed)
  )");
}

}  // namespace
}  // namespace muster::store
