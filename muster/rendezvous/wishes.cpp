#include "muster/rendezvous/wishes.h"

#include "muster/rendezvous/rules.h"

#include <algorithm>
#include <set>
#include <utility>

namespace muster::rendezvous {

bool is_open(const WishMarks& marks, std::uint64_t number) {
  return number > marks.taken || marks.missing.contains(number);
}

std::vector<std::uint64_t> open_wishes(const WishMarks& marks, std::uint64_t given) {
  std::vector<std::uint64_t> numbers(marks.missing.begin(), marks.missing.end());
  const std::uint64_t earliest = given > kWishesReadMax ? given - kWishesReadMax : 0;
  for (std::uint64_t number = std::max(marks.taken, earliest) + 1; number <= given; ++number) {
    numbers.push_back(number);
  }
  return numbers;
}

std::vector<Wish> take_wishes(std::vector<Wish> wishes, WishMarks& marks) {
  std::vector<Wish> taken;
  std::set<std::uint64_t> old;  // missing for the second time
  for (Wish& wish : wishes) {
    const bool was_missing = wish.number <= marks.taken;
    if (was_missing && !wish.text) {
      old.insert(wish.number);
      continue;
    }
    if (!was_missing && !wish.text && marks.missing.size() == kWishesMissingMax) {
      if (old.empty()) break;
      marks.missing.erase(old.extract(old.begin()).value());
    }
    marks.taken = std::max(marks.taken, wish.number);
    if (wish.text) {
      marks.missing.erase(wish.number);
      taken.push_back(std::move(wish));
    } else {
      marks.missing.insert(wish.number);
    }
  }
  return taken;
}

void grant(const Hello& wish, TimePoint now, State& state) {
  if (!check_limits(state, wish.settings)) return;
  const bool is_in_old_round = wish.place && wish.place->id == RoundId{state.birth, state.round} &&
                               state.participants.contains(wish.node);
  if (is_in_old_round) {
    apply(Action::RemoveFromParticipants, wish.node, wish.settings, now, state);
  }
  for (;;) {
    const Action action = decide_join({state, wish.settings, wish.node, now, kNever});
    if (!changes_state(action)) return;
    apply(action, wish.node, wish.settings, now, state);
  }
}

}  // namespace muster::rendezvous
