// Channel: a stream for code that asks and then awaits the answer, byte by byte as the protocol has
// it.
//
// Owned by one conversation at a time; lives on its stream's loop.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/net/transport.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace muster::store {

class Channel final : public net::StreamEvents {
 public:
  // Requires: `loop` outlives the channel.
  Channel(Loop& loop, std::unique_ptr<net::Stream> stream);
  ~Channel() override;

  // Sends at once what the stream takes and the rest when it can. False if the connection was
  // broken already and took nothing; what breaks later shows at the next `receive`.
  bool send(std::string_view bytes);

  // Exactly `size` bytes. Closed when the other side ended or broke the connection; Timeout leaves
  // what has come for the next call. One caller at a time.
  Task<Result<std::string>> receive(std::size_t size, TimePoint deadline);

  bool broken() const { return !failure_.empty(); }
  // The server ended the connection in good order, which some say "no" with; false if the network
  // did.
  bool ended() const { return ended_; }
  // Something was received that nobody has asked for yet.
  bool has_input() const { return !input_.empty(); }
  // Something of what was sent is still here: an answer that has come already answers nothing.
  bool has_output() const { return !output_.empty(); }

  // The stream, to go on with in another way. Requires: neither input nor output is left.
  std::unique_ptr<net::Stream> release();

 private:
  void on_readable() override;
  void on_writable() override;
  void flush();
  void update();
  void fail_with(std::string reason);

  Loop& loop_;
  std::unique_ptr<net::Stream> stream_;
  std::string input_;
  std::string output_;
  std::string failure_;  // why nothing more will come; empty while all is well
  bool ended_ = false;
  std::size_t unsent_bytes_at_break_ = 0;
  std::size_t wanted_bytes_ = 0;
  Oneshot<bool>* waiter_ =
      nullptr;  // told true when there is enough, false when the deadline passed
};

}  // namespace muster::store
