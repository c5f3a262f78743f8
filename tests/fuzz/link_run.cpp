#include "muster/base/assert.h"
#include "muster/store/extension_link.h"
#include "muster/wire/codec.h"
#include "muster/wire/store_extension.h"
#include "tests/fuzz/client_run.h"
#include "tests/fuzz/fake_server.h"
#include "tests/fuzz/requests.h"
#include "tests/store/test_loop.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::tests {
namespace {

using store::ExtensionLink;

class Sink final : public store::ReplySink {
 public:
  // What it does when a reply comes.
  enum class Manner { Keeps, Forgets, Cancels, AsksAgain, Talks };
  static constexpr int kManners = 5;

  Sink(std::unique_ptr<ExtensionLink>& link, Manner manner) : link_(link), manner_(manner) {
    ask();
  }
  ~Sink() override { leave(true); }

  void on_reply(const wire::Reply& reply) override {
    MUSTER_ASSERT(is_asking_ && reply.id == id_);
    const auto error = wire::error_of(reply);
    MUSTER_ASSERT(!error || !error->message.empty());
    wire::Reader reader(reply.body);
    reader.integer<std::uint8_t>();
    reader.string(reply.body.size());
    if (manner_ == Manner::Keeps) return;
    if (manner_ == Manner::Talks && reply.status == wire::kStatusChange) {
      return link_->say(id_, reply.body.substr(0, 10));
    }
    leave(manner_ == Manner::Cancels);
    if (manner_ == Manner::AsksAgain && ++times_ < 4) ask();
  }

  void on_lost(const std::string& reason, bool) override {
    MUSTER_ASSERT(is_asking_ && !reason.empty());
    is_asking_ = false;
  }

  bool is_asking() const { return is_asking_; }

 private:
  void ask() {
    Request question = blocking(get("/k"));
    if (manner_ == Manner::Keeps) question = watch_prefix("/");
    if (manner_ == Manner::Talks) question = open_service(1, "hello");
    id_ = link_->send(question, "", *this);
    is_asking_ = true;
  }

  void leave(bool cancel) {
    if (is_asking_ && link_ != nullptr) link_->forget(id_, cancel);
    is_asking_ = false;
  }

  std::unique_ptr<ExtensionLink>& link_;
  const Manner manner_;
  std::uint32_t id_ = 0;
  bool is_asking_ = false;
  int times_ = 0;
};

// The same bytes as the link reads them, without the link.
void decode(std::string_view text) {
  const std::vector<char> exact(text.begin(), text.end());
  std::string_view rest(exact.data(), exact.size());
  wire::Reply reply;
  for (;;) {
    const auto size = wire::decode_reply(rest, 1 << 20U, reply);
    if (!size || *size == 0) return;
    MUSTER_ASSERT(*size <= rest.size() && reply.body.size() + wire::kFrameHeaderBytes == *size);
    wire::error_of(reply);
    rest.remove_prefix(*size);
  }
}

}  // namespace

void run_link(std::string_view text, std::uint64_t seed) {
  std::string all;
  for (const Script& script : parse_scripts(text)) {
    for (const std::string& block : script.blocks) all += block;
  }
  decode(all);

  store::testing::TestLoop loop;
  Random random(seed);
  Script script = parse_scripts(text).front();
  const bool ends = script.ends;
  int lost = 0;
  std::unique_ptr<ExtensionLink> link;
  const auto on_lost = [&] {
    ++lost;
    link.reset();
  };
  link = std::make_unique<ExtensionLink>(
      loop, std::make_unique<FakeStream>(loop, random, std::move(script)), on_lost);
  {
    std::vector<std::unique_ptr<Sink>> sinks;
    for (int index = 0; index < 8; ++index) {
      sinks.push_back(
          std::make_unique<Sink>(link, static_cast<Sink::Manner>(index % Sink::kManners)));
    }
    MUSTER_ASSERT(loop.run_until_idle());
    MUSTER_ASSERT(lost <= 1 && (lost == 1) == (link == nullptr));
    for (const auto& sink : sinks) MUSTER_ASSERT(lost == 0 || !sink->is_asking());
    // Someone who writes brings the next block, until there is none; then the end shows. An input
    // of libFuzzer's usual length has fewer blocks than that.
    for (int turn = 0; turn < 5000 && link != nullptr; ++turn) {
      sinks.erase(sinks.begin());
      sinks.push_back(
          std::make_unique<Sink>(link, static_cast<Sink::Manner>(turn % Sink::kManners)));
      MUSTER_ASSERT(loop.run_until_idle());
    }
    if (ends) MUSTER_ASSERT(lost == 1);
  }
  link.reset();
  MUSTER_ASSERT(loop.run_until_idle());
}

}  // namespace muster::tests
