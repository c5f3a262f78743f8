#include "tests/rendezvous_sim/sabotage.h"

#include "muster/rendezvous/host_protocol.h"
#include "muster/rendezvous/state_codec.h"

#include <utility>

namespace muster::rendezvous::testing {
namespace {

class BrokenBackend final : public Backend {
 public:
  BrokenBackend(Backend& inner, Fault fault) : inner_(inner), fault_(fault) {}

  Task<Result<std::optional<Stored>>> get_state() override {
    auto stored = co_await inner_.get_state();
    if (stored && *stored) distort((*stored)->blob);
    co_return stored;
  }

  Task<Result<std::optional<Written>>> set_state(std::string blob, std::optional<Token> token,
                                                 bool signal) override {
    if (fault_ == Fault::IgnoresTheToken || fault_ == Fault::LosesWrites) {
      auto stored = co_await inner_.get_state();
      const bool is_there = stored && *stored;
      if (is_there && fault_ == Fault::LosesWrites && ++write_count_ % 2 == 0) {
        co_return Written{{std::move(blob), (*stored)->token}, true};
      }
      if (is_there && fault_ == Fault::IgnoresTheToken) token = (*stored)->token;
    }
    auto written = co_await inner_.set_state(std::move(blob), std::move(token), signal);
    if (written && *written && !(*written)->was_set) distort((*written)->now.blob);
    co_return written;
  }

  Task<Result<bool>> wait_signal(std::optional<Token> token, bool wake_on_loss,
                                 TimePoint deadline) override {
    return inner_.wait_signal(std::move(token), wake_on_loss, deadline);
  }
  bool has_leases() const override { return inner_.has_leases(); }
  Task<Result<>> beat(std::string name, Duration window) override {
    if (fault_ == Fault::GivesNoSigns) co_return Result<>();
    co_return co_await inner_.beat(std::move(name), window);
  }
  Task<Result<>> retire(std::string name) override { return inner_.retire(std::move(name)); }
  Task<Result<std::vector<Sign>>> signs(std::vector<std::string> names) override {
    return inner_.signs(std::move(names));
  }
  bool has_wishes() const override { return inner_.has_wishes(); }
  bool has_wish_numbers() const override { return inner_.has_wish_numbers(); }
  Task<Result<std::uint64_t>> take_wish_number() override { return inner_.take_wish_number(); }
  Task<Result<>> wish(std::string name, std::uint64_t number, std::string text) override {
    return inner_.wish(std::move(name), number, std::move(text));
  }
  Task<Result<>> withdraw(std::string name, std::uint64_t number) override {
    return inner_.withdraw(std::move(name), number);
  }
  Task<Result<std::vector<Wish>>> wishes(WishMarks marks) override {
    // As if nothing had ever been granted.
    if (fault_ == Fault::GrantsTwice) marks = {};
    return inner_.wishes(std::move(marks));
  }
  Task<void> clear_wishes(std::vector<std::uint64_t> numbers) override {
    if (fault_ == Fault::GrantsTwice) co_return;
    co_await inner_.clear_wishes(std::move(numbers));
  }

 private:
  // What is read, as it is seen.
  void distort(std::string& blob) const {
    auto state = decode(blob);
    if (!state) return;
    if (fault_ == Fault::OpensWhatIsClosed) state->closed = false;
    if (fault_ == Fault::ThawsTheSize && state->complete) {
      state->world_size = static_cast<std::int64_t>(state->participants.size());
    }
    blob = encode(*state);
  }

  Backend& inner_;
  const Fault fault_;
  int write_count_ = 0;
};

class BrokenTalk final : public store::Talk {
 public:
  BrokenTalk(std::unique_ptr<store::Talk> inner, Fault fault)
      : inner_(std::move(inner)), fault_(fault) {}

  void say(std::string message) override { inner_->say(std::move(message)); }
  void set_patience(Duration patience) override { inner_->set_patience(patience); }

  Task<Result<std::string>> next(TimePoint deadline) override {
    for (;;) {
      auto message = co_await inner_->next(deadline);
      if (!message) co_return message;
      auto told = decode_told(*message);
      if (told && told->kind == Told::Kind::Joined) {
        if (fault_ == Fault::MiscountsMembers && told->place.rank == 0) ++told->place.world_size;
        if (fault_ == Fault::GivesRanksTwice) told->place.rank = 0;
        co_return encode_joined(told->place);
      }
      const bool is_news = told && told->kind == Told::Kind::Status && told->status.member;
      if (fault_ == Fault::LosesNews && is_news) continue;
      co_return message;
    }
  }

 private:
  std::unique_ptr<store::Talk> inner_;
  const Fault fault_;
};

class BrokenServices final : public store::ServiceClient {
 public:
  BrokenServices(store::ServiceClient& inner, Fault fault) : inner_(inner), fault_(fault) {}

  Task<Result<std::unique_ptr<store::Talk>>> open(store::ServiceId service,
                                                  std::string message) override {
    auto talk = co_await inner_.open(service, std::move(message));
    if (!talk) co_return fail(std::move(talk.error()));
    std::unique_ptr<store::Talk> broken = std::make_unique<BrokenTalk>(std::move(*talk), fault_);
    co_return broken;
  }

 private:
  store::ServiceClient& inner_;
  const Fault fault_;
};

}  // namespace

std::string_view name_of(Fault fault) {
  switch (fault) {
    case Fault::IgnoresTheToken:
      return "ignores the token";
    case Fault::LosesWrites:
      return "loses writes";
    case Fault::ThawsTheSize:
      return "thaws the size";
    case Fault::OpensWhatIsClosed:
      return "opens what is closed";
    case Fault::GivesNoSigns:
      return "gives no signs";
    case Fault::GrantsTwice:
      return "grants wishes twice";
    case Fault::MiscountsMembers:
      return "miscounts members";
    case Fault::GivesRanksTwice:
      return "gives ranks twice";
    case Fault::LosesNews:
      return "loses news";
  }
  return "";
}

Sabotage make_sabotage(Fault fault) {
  Sabotage sabotage;
  sabotage.backend = [fault](Backend& backend) {
    return std::make_unique<BrokenBackend>(backend, fault);
  };
  sabotage.services = [fault](store::ServiceClient& services) {
    return std::make_unique<BrokenServices>(services, fault);
  };
  return sabotage;
}

}  // namespace muster::rendezvous::testing
