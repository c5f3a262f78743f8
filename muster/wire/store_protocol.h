// The store's wire protocol: operations, their numbers in each dialect, and the limits of a
// request.
//
//   Legacy     PyTorch 1.x and 2.0
//   Modern     PyTorch 2.2 and later; begins with VALIDATE
//   Extension  Muster's own: begins as Modern, then UPGRADE; framed, with request ids
//   (store_extension.h)
//
// All opcode numbers come from the one list in store_protocol.cpp. docs/store-protocol.md describes
// the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::wire {

enum class Dialect { Undecided, Legacy, Modern, Extension };
std::string_view name_of(Dialect dialect);

enum class Operation : std::uint8_t {
  Set,
  CompareSet,
  Get,
  Add,
  Check,
  Wait,
  NumKeys,
  WatchKey,
  DeleteKey,
  Append,
  MultiGet,
  MultiSet,
  CancelWait,
  Ping,
  QueuePush,
  QueuePop,
  QueueLength,
  ListKeys,
  Barrier,
  Upgrade,
  // The extension only:
  WatchPrefix,
  DropNamespace,
  Info,
  Open,
  Say,
};
inline constexpr std::size_t kOperationCount = static_cast<std::size_t>(Operation::Say) + 1;
std::string_view name_of(Operation operation);

// The opcode in a dialect, if it has the operation there; and back.
std::optional<std::uint8_t> opcode_of(Operation operation, Dialect dialect);
std::optional<Operation> operation_of(std::uint8_t opcode, Dialect dialect);

// What PyTorch 2.2+ clients send first, with opcode 0x00; never answered.
inline constexpr std::uint32_t kValidateMagic = 0x3C85F7CE;
// The first bytes of a client that does not know the server: VALIDATE and four times GETNUMKEYS, in
// one write. To an older server they are one SET with a key of an impossible length, which it
// refuses without harm to others.
inline constexpr std::string_view kProbe("\x00\xCE\xF7\x85\x3C\x07\x07\x07\x07", 9);
inline constexpr std::size_t kProbeReplyBytes = 4 * sizeof(std::int64_t);

// A Muster server says that such a key exists (to CHECK in the Modern dialect) if it speaks version
// N of the extension. PyTorch's keys begin with "/", so no user can have it.
inline constexpr std::string_view kExtensionKey = "muster/extension/1";
inline constexpr std::uint32_t kExtensionVersion = 1;

// The internal key in which PyTorch counts workers.
inline constexpr std::string_view kWorkerCountKey = "init/";

enum class CheckReply : std::uint8_t { Ready = 0, NotReady = 1 };
enum class WaitReply : std::uint8_t { StopWaiting = 0, WaitCanceled = 1 };
enum class WatchMessage : std::uint8_t { Updated = 0, Created = 1, Deleted = 2, Registered = 3 };

// What a server accepts. The defaults are what PyTorch's libuv server accepts; its older servers
// have no limits at all, which is why Legacy connections get more.
struct Limits {
  std::size_t key_bytes = 8192;
  std::size_t value_bytes = std::size_t{8} << 20U;
  std::size_t key_count = 131'072;
  std::size_t legacy_key_bytes = std::size_t{1} << 20U;
  std::size_t legacy_value_bytes = std::size_t{1} << 30U;
  std::size_t frame_bytes = std::size_t{1} << 30U;    // one frame of the extension
  std::size_t message_bytes = std::size_t{1} << 20U;  // what a client says to a service at once
};

// One request, in any dialect. The views point into the bytes it was parsed from.
struct Request {
  Operation operation = Operation::Ping;
  std::uint32_t id = 0;      // the extension's
  bool blocking = false;     // the extension's Get, MultiGet and QueuePop wait on the server if set
  std::string_view key;      // or queue, prefix, namespace
  std::string_view value;    // or data, item, expected, message
  std::string_view desired;  // CompareSet
  std::int64_t number = 0;   // Add's delta, Barrier's member count, Ping's nonce, CancelWait's
                             // target, Upgrade's version, Open's service
  std::vector<std::string_view> keys;
  std::vector<std::string_view> values;  // MultiSet: the values that go with `keys`
};

// Requests to bytes, for Legacy and Modern. Uses the fields that the operation has.
// Requires: the dialect has the operation.
void encode(const Request& request, Dialect dialect, std::string& out);

// Finds requests in the bytes of one connection. Pure; owned by the connection.
//
// Bytes may come in any pieces: `next` is called with everything from the beginning of the current
// request, and goes on where it stopped, so that a long request is looked at once, however slowly
// it comes.
class RequestParser {
 public:
  enum class Status { Complete, Incomplete, Broken };

  // Requires: `limits` outlives the parser.
  explicit RequestParser(const Limits& limits) : limits_(limits) {}

  // Complete: `request` is filled. Broken: `reason()` says why; the connection must be closed.
  // `consumed` says how many bytes are done with: the request's, and those of the Modern handshake,
  // which may be consumed without a request.
  Status next(std::string_view input, Request& request, std::size_t& consumed);

  Dialect dialect() const { return dialect_; }
  // After Upgrade was answered.
  void upgrade() { dialect_ = Dialect::Extension; }
  const std::string& reason() const { return reason_; }

 private:
  struct Field {
    std::size_t offset = 0;
    std::size_t size = 0;
  };

  Status decide(std::string_view input);
  Status scan(std::string_view input);
  Status scan_blob(std::string_view input, std::size_t limit, std::string_view what);
  Status next_frame(std::string_view input, Request& request, std::size_t& consumed);
  void fill(std::string_view input, Request& request);
  Status broken(std::string reason);

  const Limits& limits_;
  Dialect dialect_ = Dialect::Undecided;
  // Where the scan of the current request stands. `position_` 0: at its beginning.
  std::size_t position_ = 0;
  Operation operation_ = Operation::Ping;
  std::size_t step_ = 0;        // in the operation's shape
  std::size_t blobs_left_ = 0;  // of the list that is being read
  std::int64_t number_ = 0;
  std::vector<Field> fields_;
  std::string reason_;
};

}  // namespace muster::wire
