// PlainClient: questions to a server that speaks one of PyTorch's dialects, each over a connection
// of the pool, repeated where that is safe; and what it means when there is no answer.
//
// Owned by the PlainStore; lives on its loop. Requests name keys as they are on the wire.
#pragma once

#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/store/handshake.h"
#include "muster/store/plain_pool.h"
#include "muster/wire/store_protocol.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster::store {

// What a reply looks like where its size is not known beforehand.
inline constexpr std::size_t kBlob =
    static_cast<std::size_t>(-1);  // a length, and as many bytes, which are the reply
inline constexpr std::size_t kItem =
    static_cast<std::size_t>(-2);  // a number, and a blob if it is not zero
inline constexpr std::size_t kList = static_cast<std::size_t>(-3);  // a number, and as many blobs

// The parts of such a reply.
std::int64_t take_number(std::string_view& rest);
std::string_view take_blob(std::string_view& rest);

class PlainClient {
 public:
  // What one request over one connection came to.
  struct Attempt {
    bool sent = false;   // there was a connection, so the request may have been carried out
    bool ended = false;  // then: the server ended it instead of answering, which is how it refuses
    Result<std::string> reply = fail(ErrorKind::Closed, "");
  };

  // Takes over the first connection.
  PlainClient(ClientContext context, Opened opened)
      : context_(std::move(context)), pool_(context_, std::move(opened)) {}
  PlainClient(const PlainClient&) = delete;
  PlainClient& operator=(const PlainClient&) = delete;

  Loop& loop() const { return context_.loop; }
  wire::Dialect dialect() const { return pool_.dialect(); }
  TimePoint reply_deadline() const {
    return after(context_.loop.now(), context_.options.reply_timeout);
  }

  std::string encoded(const wire::Request& request) const;
  // A request without a reply, and one with a reply behind it: when that comes, the first has been
  // done.
  std::string encoded_write(const wire::Request& request) const;

  // Sends a request and receives its reply, of so many bytes or of one of the shapes above, over
  // one connection.
  Task<Attempt> try_once(std::string bytes, std::size_t reply_bytes, TimePoint deadline);
  // Likewise, and repeats it over a new connection where that is safe. The requests live in the
  // caller's frame.
  Task<Result<std::string>> ask(wire::Request& request, std::size_t reply_bytes);
  // Likewise, for a read that not every server knows. `what` is what it lacks then.
  Task<Result<std::string>> ask_if_known(wire::Request& request, std::size_t reply_bytes,
                                         std::string_view what);
  Task<Result<std::int64_t>> ask_number(wire::Request& request);
  // The value of a key, or nothing if it is absent. `was_present`: it was a moment ago.
  Task<Result<std::optional<std::string>>> read(std::string name, bool was_present);
  Task<Result<>> write(wire::Request& request);
  Task<Result<>> wait_for(wire::Request& request, TimePoint deadline);
  // A moment later, for what can only be asked again and again. False if the deadline has come.
  Task<bool> pause(TimePoint deadline);

  Result<> needs_modern(std::string_view what) const;
  // Why there is no answer. Without a connection that has been said.
  Error explain(const Attempt& attempt, const wire::Request& request) const;
  // A server says that it does not know an operation by ending the connection.
  Error explain_unknown(const Attempt& attempt, const wire::Request& request,
                        std::string_view what) const;

 private:
  Task<Result<std::optional<std::string>>> read_empty(std::string name);
  Task<Result<>> cancel_wait(Channel& channel);
  Error name_failure(const Error& error, const wire::Request& request) const;

  ClientContext context_;
  PlainPool pool_;
};

}  // namespace muster::store
