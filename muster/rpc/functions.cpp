#include "muster/rpc/functions.h"

#include "muster/base/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cxxabi.h>
#include <exception>
#include <functional>
#include <typeinfo>

namespace muster::rpc {
namespace {

constexpr std::size_t kSlotsFirst = 64;
constexpr std::size_t kQuotedBytesMax = 100;
// Comparing a name with so many takes milliseconds, and whoever looks for it may be the I/O thread.
constexpr std::size_t kSuggestedFromMax = 1000;

std::string demangled(const std::type_info& type) {
  int status = 0;
  char* const readable = abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
  std::string name = readable != nullptr ? readable : type.name();
  std::free(readable);
  return name;
}

bool is_control(char letter) { return static_cast<unsigned char>(letter) < 0x20 || letter == 0x7f; }

Failure cut(Failure failure) {
  return {.type = cut_text(std::move(failure.type), kFailureTypeBytesMax),
          .text = cut_text(std::move(failure.text), kFailureTextBytesMax)};
}

// A name that came from outside, for a text.
std::string quoted(std::string_view name) {
  std::string text = "\"";
  for (const char letter :
       cut_text(std::string(name.substr(0, kQuotedBytesMax + 1)), kQuotedBytesMax)) {
    if (is_control(letter)) {
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(letter));
    } else {
      text += letter;
    }
  }
  return text + "\"";
}

}  // namespace

Failure describe_current_exception() {
  Failure failure;
  const std::type_info* const type = abi::__cxa_current_exception_type();
  if (type != nullptr) failure.type = demangled(*type);
  try {
    throw;
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (const CallException& thrown) {
    return failure_of(thrown.error());
  } catch (const std::exception& thrown) {
    const char* const what = thrown.what();
    failure.text = what != nullptr ? what : "";
  } catch (const std::string& thrown) {
    failure.text = thrown;
  } catch (const char* thrown) {
    failure.text = thrown != nullptr ? thrown : "";
  } catch (...) {
    failure.text = "an exception that is no std::exception";
  }
  return failure;
}

Failure failure_of(const Error& error) {
  return {.type = fmt::format("muster::Error<{}>", name_of(error.kind)), .text = error.message};
}

Failure failure_of(const CallError& error) {
  return {.type = error.type.empty() ? "muster::rpc::CallException" : error.type,
          .text = render(error)};
}

// ---- Reply --------------------------------------------------------------------------------------

// All that is ever told of a failure comes by here, whatever it is of.
void Reply::fail(Failure failure) { take().fail(cut(std::move(failure))); }
void Reply::refuse(Failure failure) { take().refuse(cut(std::move(failure))); }

void Reply::drop() { fail({.type = {}, .text = "the function was given up without an answer"}); }

void Reply::finish(Writer&& result) {
  if (auto finished = result.finish(); !finished) {
    return fail({.type = {}, .text = "the result cannot be sent: " + finished.error().message});
  }
  succeed(std::move(result));
}

// ---- Function -----------------------------------------------------------------------------------

Function::Function(std::string name, std::string signature, FunctionOptions options)
    : name_(std::move(name)),
      signature_(std::move(signature)),
      signature_hash_(hash_of_signature(signature_)),
      options_(options) {}

Result<> Function::check(std::uint64_t caller_signature_hash) const {
  if (caller_signature_hash == signature_hash_) return {};
  return muster::fail(
      ErrorKind::Invalid,
      fmt::format("{} is {} here, and was called with other types", quoted(name_), signature_));
}

void Function::refuse(const Error& problem, Reply reply) const {
  refuse(Failure{.type = {}, .text = problem.message}, std::move(reply));
}

void Function::refuse(Failure thrown, Reply reply) const {
  reply.refuse({.type = std::move(thrown.type),
                .text = fmt::format("the arguments of {} {} cannot be read: {}", quoted(name_),
                                    signature_, thrown.text)});
}

// ---- Functions ----------------------------------------------------------------------------------

// Open addressing, at most half full, so that every search ends at an empty slot. A slot is written
// once.
struct Functions::Table {
  explicit Table(std::size_t slot_count) : slots(slot_count) {}

  std::size_t place_of(std::string_view name) const {
    return std::hash<std::string_view>()(name) & (slots.size() - 1);
  }
  std::size_t next(std::size_t place) const { return (place + 1) & (slots.size() - 1); }

  void insert(const Function& function) {
    std::size_t place = place_of(function.name());
    while (slots[place].load(std::memory_order_relaxed) != nullptr) place = next(place);
    slots[place].store(&function, std::memory_order_release);
  }

  std::vector<std::atomic<const Function*>> slots;  // a power of two
};

Functions::Functions() : table_(nullptr) {
  tables_.push_back(std::make_unique<Table>(kSlotsFirst));
  table_.store(tables_.back().get(), std::memory_order_release);
}

Functions::~Functions() = default;

Result<> Functions::add(std::unique_ptr<Function> function) {
  MUSTER_ASSERT(function != nullptr);
  const std::string& name = function->name();
  if (name.empty() || name.size() > kFunctionNameBytesMax) {
    return fail(ErrorKind::Invalid,
                fmt::format("{} has {} bytes; the name of a function has 1 to {}", quoted(name),
                            name.size(), kFunctionNameBytesMax));
  }
  if (std::any_of(name.begin(), name.end(), is_control)) {
    return fail(ErrorKind::Invalid,
                fmt::format("the name of a function has no control characters: {}", quoted(name)));
  }
  const std::lock_guard lock(adding_);
  if (find_or_null(name) != nullptr) {
    return fail(ErrorKind::Conflict, fmt::format("there is a function {} already", quoted(name)));
  }
  if (functions_.size() == kFunctionsMax) {
    return fail(ErrorKind::Invalid, fmt::format("there are {} functions already", kFunctionsMax));
  }
  Table* table = tables_.back().get();
  const Function& added = *function;
  functions_.push_back(std::move(function));
  if (functions_.size() * 2 > table->slots.size()) {
    tables_.push_back(std::make_unique<Table>(table->slots.size() * 2));
    table = tables_.back().get();
    for (const auto& each : functions_) table->insert(*each);
    table_.store(table, std::memory_order_release);
  } else {
    table->insert(added);
  }
  return {};
}

const Function* Functions::find_or_null(std::string_view name) const {
  const Table& table = *table_.load(std::memory_order_acquire);
  for (std::size_t place = table.place_of(name);; place = table.next(place)) {
    const Function* const function = table.slots[place].load(std::memory_order_acquire);
    if (function == nullptr || function->name() == name) return function;
  }
}

Result<const Function*> Functions::find(std::string_view name) const {
  if (const Function* const function = find_or_null(name)) return function;
  std::string text = fmt::format("there is no function {} here", quoted(name));
  if (const std::string near = suggestion_for(name); !near.empty()) {
    text += fmt::format("; did you mean {}?", quoted(near));
  }
  return fail(ErrorKind::Unimplemented, std::move(text));
}

std::string Functions::suggestion_for(std::string_view name) const {
  {
    const std::lock_guard lock(adding_);
    if (functions_.size() > kSuggestedFromMax) return {};
  }
  return nearest(name, names());
}

std::vector<std::string> Functions::names() const {
  std::vector<std::string> names;
  {
    const std::lock_guard lock(adding_);
    for (const auto& function : functions_) names.push_back(function->name());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace muster::rpc
