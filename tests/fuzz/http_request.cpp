// Bytes of a client against the parser of HTTP requests: it finds the same requests however they
// are cut, and what it finds keeps its promises.
#include "muster/observe/http_request.h"

#include "muster/base/assert.h"
#include "muster/base/random.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace muster::observe {
namespace {

// What a server would have understood, as text, to be compared.
class Reading {
 public:
  void feed(std::string_view piece) {
    // In memory of exactly its size, so that AddressSanitizer notices every byte read past it.
    const std::vector<char> exact(piece.begin(), piece.end());
    parser_.append({exact.data(), exact.size()});
    while (auto parsed = parser_.next()) {
      MUSTER_ASSERT(!failed_);
      if (const auto* request = std::get_if<Request>(&*parsed)) {
        note(*request);
      } else {
        const auto& error = std::get<RequestError>(*parsed);
        MUSTER_ASSERT(error.status >= 400 && error.status < 600 && !error.reason.empty());
        failed_ = true;
        heard_ += '!' + std::to_string(error.status);
      }
    }
    // What waits for more is bounded, with the piece that may have gone beyond.
    MUSTER_ASSERT(parser_.buffered_bytes() <= kHeadBytesMax);
    MUSTER_ASSERT(!failed_ || parser_.is_empty());
  }

  const std::string& heard() const { return heard_; }

 private:
  void note(const Request& request) {
    MUSTER_ASSERT(!request.method.empty() && !request.target.empty());
    MUSTER_ASSERT(request.path.starts_with('/') || request.path == "*");
    MUSTER_ASSERT(request.path.find('\0') == std::string::npos);
    MUSTER_ASSERT(request.headers.size() <= kHeadersMax);
    MUSTER_ASSERT(request.minor_version == 0 || request.minor_version == 1);
    MUSTER_ASSERT(request.minor_version == 0 || request.header("host"));
    heard_ += request.method + ' ' + request.path;
    for (const auto& [name, value] : request.query) heard_ += '?' + name + '=' + value;
    for (const auto& [name, value] : request.headers) {
      MUSTER_ASSERT(!name.empty() && value.find_first_of("\r\n") == std::string::npos);
      MUSTER_ASSERT(std::none_of(name.begin(), name.end(), [](char c) { return c <= ' '; }));
      heard_ += '\n' + name + ':' + value;
    }
    heard_ += request.keep_alive ? '+' : '-';
    heard_ += request.has_body ? 'b' : '.';
  }

  RequestParser parser_;
  std::string heard_;
  bool failed_ = false;
};

void run(std::string_view input) {
  Reading whole;
  whole.feed(input);
  Random random(input.size());
  Reading pieces;
  for (std::string_view rest = input; !rest.empty();) {
    const std::string_view piece = rest.substr(0, 1 + random.below(20));
    pieces.feed(piece);
    rest.remove_prefix(piece.size());
  }
  MUSTER_ASSERT(whole.heard() == pieces.heard());
}

}  // namespace
}  // namespace muster::observe

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  muster::observe::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
