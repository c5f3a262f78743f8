#include "tests/fuzz/conversation.h"

#include "muster/base/random.h"
#include "tests/fuzz/requests.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

// libFuzzer's own mutations.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t size_max);

namespace muster::tests {
namespace {

constexpr std::size_t kSeedBytes = 2;
constexpr std::size_t kTextBytesMax = 600;
constexpr wire::Limits kLimits;

// The dialect that a conversation is taken to be in when it is changed.
Dialect dialect_of(Dialect begins_as) {
  return begins_as == Dialect::Undecided ? Dialect::Legacy : begins_as;
}

void mutate_text(std::string& text) {
  const std::size_t size = std::min(text.size(), kTextBytesMax);
  text.resize(kTextBytesMax);
  text.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(text.data()), size, kTextBytesMax));
}

Operation random_operation(Dialect dialect, Random& random) {
  for (;;) {
    const auto operation = static_cast<Operation>(random.below(wire::kOperationCount));
    if (wire::opcode_of(operation, dialect)) return operation;
  }
}

// Keys that the observer and other requests use too.
std::string random_key(Random& random) {
  static const std::vector<std::string> keys = {"/k", "/a", "/b", "/n", "/q", "/bar", "init/", ""};
  return keys[random.below(keys.size())];
}

KeptRequest random_request(Dialect dialect, Random& random) {
  KeptRequest made;
  made.operation = random_operation(dialect, random);
  made.id = static_cast<std::uint32_t>(random.below(12));
  made.blocking = random.chance(500);
  made.key = random_key(random);
  made.value = random.chance(500) ? "v" : "7";
  made.desired = "w";
  made.number = static_cast<std::int64_t>(random.below(4));
  // Most of what is said is said to the service that there is, in its language.
  if (made.operation == Operation::Open && random.chance(900)) made.number = 1;
  if (made.operation == Operation::Open || made.operation == Operation::Say) {
    constexpr std::string_view kLetters = "eafFrx";
    made.value = std::string(1, kLetters[random.below(kLetters.size())]) + "words";
  }
  for (std::uint64_t count = random.below(4); count > 0; --count) {
    made.keys.push_back(random_key(random));
  }
  return made;
}

void change_one_thing(KeptRequest& made, Dialect dialect, Random& random) {
  switch (random.below(9)) {
    case 0:
      return mutate_text(made.key);
    case 1:
      return mutate_text(random.chance(700) ? made.value : made.desired);
    case 2:
      made.operation = random_operation(dialect, random);
      return;
    case 3:
      made.number = random.chance(500) ? static_cast<std::int64_t>(random.below(16))
                                       : static_cast<std::int64_t>(random.next());
      return;
    case 4:
      made.id = static_cast<std::uint32_t>(random.below(12));
      made.blocking = !made.blocking;
      return;
    case 5:
      made.key = random_key(random);
      return;
    case 6:
      made.keys.push_back(random_key(random));
      return;
    case 7:
      if (!made.keys.empty()) mutate_text(made.keys[random.below(made.keys.size())]);
      return;
    default:
      // Growing fast is what finds the limits.
      made.value += made.value.empty() ? std::string(100, 'v') : made.value;
      made.value.resize(std::min(made.value.size(), kTextBytesMax));
  }
}

void change_conversation(std::vector<KeptRequest>& all, Dialect dialect, Random& random) {
  const std::size_t place = random.below(all.size() + 1);
  const auto here = all.begin() + static_cast<std::ptrdiff_t>(place);
  const std::uint64_t kind = all.empty() ? 0 : random.below(8);
  switch (kind) {
    case 0:
    case 1:
      all.insert(here, random_request(dialect, random));
      return;
    case 2:
      all.insert(here, KeptRequest(all[random.below(all.size())]));
      return;
    case 3:
      if (here != all.end()) all.erase(here);
      return;
    case 4:
      if (here != all.end()) std::swap(*here, all[random.below(all.size())]);
      return;
    default:
      change_one_thing(all[random.below(all.size())], dialect, random);
  }
}

std::string encode_all(std::vector<KeptRequest>& all, Dialect dialect) {
  std::string bytes;
  for (KeptRequest& made : all) {
    // A frame that nobody understands is read as Upgrade, which no frame can hold.
    if (!wire::opcode_of(made.operation, dialect)) continue;
    made.values.resize(made.keys.size());
    bytes += bytes_of(view(made), dialect);
  }
  return bytes;
}

}  // namespace

SplitInput split_input(std::string_view input) {
  if (input.size() < kSeedBytes) return {input, 0};
  const std::string_view seed = input.substr(input.size() - kSeedBytes);
  return {input.substr(0, input.size() - kSeedBytes),
          static_cast<std::uint64_t>(static_cast<unsigned char>(seed[0])) * 256 +
              static_cast<unsigned char>(seed[1])};
}

std::size_t mutate_conversation(Dialect begins_as, std::uint8_t* data, std::size_t size,
                                std::size_t size_max, unsigned int seed) {
  Random random(seed);
  if (size < kSeedBytes || random.chance(250)) return LLVMFuzzerMutate(data, size, size_max);
  const std::string input(reinterpret_cast<const char*>(data), size);
  const std::string_view bytes = split_input(input).bytes;
  const Dialect dialect = dialect_of(begins_as);

  Feeder feeder(kLimits);
  if (begins_as == Dialect::Modern) feeder.feed(kValidate);
  if (begins_as == Dialect::Extension) feeder.parser().upgrade();
  feeder.feed(bytes);
  std::vector<KeptRequest> all = feeder.requests();
  change_conversation(all, dialect, random);
  std::string changed = encode_all(all, dialect);
  // What could not be parsed stays at the end, most of the time.
  if (random.chance(800)) changed += bytes.substr(bytes.size() - feeder.unparsed_bytes());
  changed += input.substr(input.size() - kSeedBytes);
  if (changed.size() > size_max) return LLVMFuzzerMutate(data, size, size_max);
  std::copy(changed.begin(), changed.end(), data);
  return changed.size();
}

}  // namespace muster::tests
