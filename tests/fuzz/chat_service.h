// ChatService: a service for the tests and fuzz targets of the Hub, the server and the client.
//
// The first letter of a message says what to do with the rest:
//   e  say it back                 a  say it to everybody
//   f  finish with it              F  finish with it, and everybody else too
//   r  refuse with it (Conflict)
// Anything else is only noted. When somebody goes, the others are told "left" or "lost" with their
// number; they are numbered as they came.
//
// Aborts if it is told something that cannot be. Owned by the test; outlives the server.
#pragma once

#include "muster/base/assert.h"
#include "muster/store/service.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::tests {

class ChatService final : public store::Service {
 public:
  void opened(store::Conversation& conversation, std::string_view namespace_name,
              std::string_view message) override {
    MUSTER_ASSERT(!numbers_.contains(&conversation));
    const int number = ++last_number_;
    numbers_[&conversation] = number;
    present_[number] = &conversation;
    events_.push_back(fmt::format("{} opened in \"{}\": {}", number, namespace_name, message));
    obey(conversation, message);
  }

  void heard(store::Conversation& conversation, std::string_view message) override {
    events_.push_back(fmt::format("{} said: {}", number_of(conversation), message));
    obey(conversation, message);
  }

  void ended(store::Conversation& conversation, End how) override {
    const int number = number_of(conversation);
    const std::string_view word = how == End::Left ? "left" : "lost";
    forget(conversation);
    events_.push_back(fmt::format("{} {}", number, word));
    // It is there until this returns, and hears nothing any more.
    conversation.say("nobody is there");
    if (number % 2 == 0) conversation.finish("nor here");
    say_to_all(fmt::format("{} {}", word, number));
  }

  // To everybody who is there, in the order they came.
  void say_to_all(std::string_view message) {
    for (const auto& [number, conversation] : present_) conversation->say(message);
  }

  store::Conversation& conversation(int number) { return *present_.at(number); }
  std::size_t size() const { return present_.size(); }
  // What has happened since the last call.
  std::vector<std::string> take_events() { return std::exchange(events_, {}); }

 private:
  int number_of(store::Conversation& conversation) const {
    const auto found = numbers_.find(&conversation);
    MUSTER_ASSERT(found != numbers_.end());
    return found->second;
  }

  void forget(store::Conversation& conversation) {
    present_.erase(number_of(conversation));
    numbers_.erase(&conversation);
  }

  void obey(store::Conversation& conversation, std::string_view message) {
    const char letter = message.empty() ? ' ' : message[0];
    const std::string_view rest = message.empty() ? message : message.substr(1);
    switch (letter) {
      case 'e':
        return conversation.say(rest);
      case 'a':
        return say_to_all(rest);
      case 'f':
        forget(conversation);
        return conversation.finish(rest);
      case 'r':
        forget(conversation);
        return conversation.refuse(ErrorKind::Conflict, rest);
      case 'F':
        numbers_.clear();
        for (const auto& [number, other] : std::exchange(present_, {})) other->finish(rest);
        return;
      default:
        return;
    }
  }

  int last_number_ = 0;
  std::map<store::Conversation*, int> numbers_;  // never walked through
  std::map<int, store::Conversation*> present_;
  std::vector<std::string> events_;
};

}  // namespace muster::tests
