#include "bench/protocol.h"

#include "bench/echo_server.h"

#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <cstring>
#include <initializer_list>

namespace muster::bench {
namespace {

using Parsed = Result<std::optional<Reply>>;

static_assert(std::endian::native == std::endian::little,
              "dialect M is sent in native byte order here");

Parsed whole(std::size_t bytes, std::string_view payload) {
  return std::optional<Reply>(Reply{bytes, payload});
}
Parsed incomplete() { return std::optional<Reply>(); }

Parsed fixed(std::size_t bytes, std::string_view received) {
  if (received.size() < bytes) return incomplete();
  return whole(bytes, received.substr(0, bytes));
}

// ---- raw echo -----------------------------------------------------------------------------------

class EchoProtocol final : public Protocol {
 public:
  EchoProtocol(std::size_t request_bytes, std::size_t reply_bytes)
      : request_(request_bytes, 'q'), reply_bytes_(reply_bytes) {}

  void append_hello(Role role, std::string& out) const override {
    EchoHello hello;
    hello.role = role == Role::Waiter      ? EchoRole::Listener
                 : role == Role::Announcer ? EchoRole::Announcer
                                           : EchoRole::Echo;
    hello.request_bytes = static_cast<std::uint32_t>(request_.size());
    hello.reply_bytes = static_cast<std::uint32_t>(reply_bytes_);
    out.append(reinterpret_cast<const char*>(&hello), sizeof hello);
  }
  Parsed parse_hello(std::string_view received) const override { return fixed(1, received); }
  void append_request(const Request&, std::string& out) const override { out.append(request_); }
  Parsed parse_reply(Operation, std::string_view received) const override {
    return fixed(reply_bytes_, received);
  }
  std::size_t reply_bytes() const override { return reply_bytes_; }

  Wait append_wait(std::uint64_t, std::string&) const override { return {}; }
  Parsed parse_wait(std::string_view) const override { return incomplete(); }
  void append_release(std::uint64_t, std::size_t, std::string& out) const override {
    out.append(request_);
  }
  Parsed parse_release(std::string_view received) const override {
    return fixed(reply_bytes_, received);
  }

 private:
  std::string request_;
  std::size_t reply_bytes_;
};

// ---- Redis --------------------------------------------------------------------------------------

// Reads one RESP2 reply; arrays are taken as a whole and have no payload.
Parsed parse_resp(std::string_view received) {
  const std::size_t line_end = received.find("\r\n");
  if (line_end == std::string_view::npos) return incomplete();
  const std::string_view line = received.substr(1, line_end - 1);
  const std::size_t after_line = line_end + 2;
  switch (received.front()) {
    case '+':
    case ':':
      return whole(after_line, line);
    case '-':
      return fail(ErrorKind::Invalid, fmt::format("redis answered: {}", line));
    case '$':
    case '*':
      break;
    default:
      return fail(ErrorKind::Invalid, "redis sent something that is not RESP");
  }
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), count);
  if (error != std::errc() || end != line.data() + line.size()) {
    return fail(ErrorKind::Invalid, "redis sent a length that is not a number");
  }
  if (count < 0) return whole(after_line, {});
  const auto size = static_cast<std::size_t>(count);
  if (received.front() == '$') {
    if (received.size() < after_line + size + 2) return incomplete();
    return whole(after_line + size + 2, received.substr(after_line, size));
  }
  std::size_t bytes = after_line;
  for (std::size_t i = 0; i < size; ++i) {
    if (bytes >= received.size()) return incomplete();
    Parsed element = parse_resp(received.substr(bytes));
    if (!element || !*element) return element;
    bytes += (*element)->bytes;
  }
  return whole(bytes, {});
}

class RedisProtocol final : public Protocol {
 public:
  void append_hello(Role, std::string& out) const override { append_command(out, {"PING"}); }
  Parsed parse_hello(std::string_view received) const override { return parse(received); }

  void append_request(const Request& request, std::string& out) const override {
    switch (request.operation) {
      case Operation::Get:
        return append_command(out, {"GET", request.key});
      case Operation::Set:
        return append_command(out, {"SET", request.key, request.value});
      case Operation::Add:
        return append_command(out, {"INCRBY", request.key, "1"});
      case Operation::CompareSet:
      case Operation::Wake:
        break;  // refused by the driver
    }
  }
  Parsed parse_reply(Operation, std::string_view received) const override {
    return parse(received);
  }

  Wait append_wait(std::uint64_t round, std::string& out) const override {
    if (round > 0) return {};
    append_command(out, {"SUBSCRIBE", kChannel});
    return {.is_sent = true, .is_confirmed = true};
  }
  Parsed parse_wait(std::string_view received) const override { return parse(received); }
  void append_release(std::uint64_t, std::size_t value_bytes, std::string& out) const override {
    append_command(out, {"PUBLISH", kChannel, std::string(value_bytes, 'a')});
  }
  Parsed parse_release(std::string_view received) const override { return parse(received); }

 private:
  static constexpr std::string_view kChannel = "bench/wake";

  static Parsed parse(std::string_view received) {
    return received.empty() ? incomplete() : parse_resp(received);
  }

  static void append_command(std::string& out, std::initializer_list<std::string_view> words) {
    append_length('*', words.size(), out);
    for (const std::string_view word : words) {
      append_length('$', word.size(), out);
      out.append(word).append("\r\n");
    }
  }
  static void append_length(char kind, std::size_t length, std::string& out) {
    const fmt::format_int text(length);
    out.push_back(kind);
    out.append(text.data(), text.size()).append("\r\n");
  }
};

// ---- PyTorch's dialect M ------------------------------------------------------------------------

class TcpstoreProtocol final : public Protocol {
 public:
  void append_hello(Role, std::string& out) const override {
    append_byte(kValidate, out);
    append_number(std::uint32_t{0x3C85F7CE}, out);
    append_byte(kPing, out);
    append_number(std::uint32_t{1}, out);
  }
  Parsed parse_hello(std::string_view received) const override {
    return fixed(sizeof(std::uint32_t), received);
  }

  void append_request(const Request& request, std::string& out) const override {
    switch (request.operation) {
      case Operation::Get:
        append_byte(kGet, out);
        return append_text(request.key, out);
      case Operation::Set:
        append_byte(kSet, out);
        append_text(request.key, out);
        append_text(request.value, out);
        append_byte(kCheck, out);
        append_number(std::uint64_t{1}, out);
        return append_text(request.key, out);
      case Operation::Add:
        append_byte(kAdd, out);
        append_text(request.key, out);
        return append_number(std::int64_t{1}, out);
      case Operation::CompareSet:
        append_byte(kCompareSet, out);
        append_text(request.key, out);
        append_text(request.expected, out);
        return append_text(request.value, out);
      case Operation::Wake:
        break;  // has methods of its own
    }
  }
  Parsed parse_reply(Operation operation, std::string_view received) const override {
    if (operation == Operation::Set) return fixed(1, received);
    if (received.size() < sizeof(std::uint64_t)) return incomplete();
    if (operation == Operation::Add) return fixed(sizeof(std::uint64_t), received);
    std::uint64_t size = 0;
    std::memcpy(&size, received.data(), sizeof size);
    if (received.size() - sizeof size < size) return incomplete();
    return whole(sizeof size + size, received.substr(sizeof size, size));
  }

  Wait append_wait(std::uint64_t round, std::string& out) const override {
    append_byte(kWait, out);
    append_number(std::uint64_t{1}, out);
    append_text(wake_key(round), out);
    return {.is_sent = true, .is_confirmed = false};
  }
  Parsed parse_wait(std::string_view) const override { return incomplete(); }
  void append_release(std::uint64_t round, std::size_t value_bytes,
                      std::string& out) const override {
    append_byte(kSet, out);
    append_text(wake_key(round), out);
    append_text(std::string(value_bytes, 'a'), out);
  }
  Parsed parse_release(std::string_view received) const override { return fixed(1, received); }

 private:
  static constexpr char kValidate = 0x00;
  static constexpr char kSet = 0x01;
  static constexpr char kCompareSet = 0x02;
  static constexpr char kGet = 0x03;
  static constexpr char kAdd = 0x04;
  static constexpr char kCheck = 0x05;
  static constexpr char kWait = 0x06;
  static constexpr char kPing = 0x0d;

  // A key for each round: a key that exists does not make anyone wait. Two crowds may meet one
  // server.
  std::string wake_key(std::uint64_t round) const {
    return fmt::format("bench/wake/{}/{}", born_, round);
  }
  static void append_byte(char byte, std::string& out) { out.push_back(byte); }
  template <typename Number>
  static void append_number(Number number, std::string& out) {
    out.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  static void append_text(std::string_view text, std::string& out) {
    append_number(static_cast<std::uint64_t>(text.size()), out);
    out.append(text);
  }

  Duration::rep born_ = steady_now().time_since_epoch().count();
};

}  // namespace

std::unique_ptr<Protocol> make_echo_protocol(std::size_t request_bytes, std::size_t reply_bytes) {
  return std::make_unique<EchoProtocol>(request_bytes, reply_bytes);
}
std::unique_ptr<Protocol> make_redis_protocol() { return std::make_unique<RedisProtocol>(); }
std::unique_ptr<Protocol> make_tcpstore_protocol() { return std::make_unique<TcpstoreProtocol>(); }

}  // namespace muster::bench
