#include "muster/rpc/membership.h"

#include "muster/rpc/member.h"
#include "muster/rpc/texts.h"
#include "muster/wire/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace muster::rpc {
namespace {

constexpr std::string_view kMagic = "MusterRL";
constexpr std::uint32_t kFormatVersion = 2;
constexpr std::size_t kMembersMax = std::size_t{kWorkerIdMax} + 1;
// Of the gap between two looks no more counts, in look intervals.
constexpr int kGapIntervalsMax = 2;

// Ids rise, and nobody shares a name or an incarnation.
bool is_sound(const std::vector<Member>& members) {
  std::set<std::string_view> names;
  Incarnations incarnations;
  for (std::size_t index = 0; index < members.size(); ++index) {
    const Member& member = members[index];
    if (index > 0 && members[index - 1].info.id() >= member.info.id()) return false;
    if (!names.insert(member.info.name()).second) return false;
    if (!incarnations.insert(member.incarnation).second) return false;
  }
  return true;
}

bool take_number(std::string_view& text, std::uint64_t& number) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  return true;
}

}  // namespace

// ---- the list

const Member* MemberList::find(std::uint64_t incarnation) const {
  for (const Member& member : members) {
    if (member.incarnation == incarnation) return &member;
  }
  return nullptr;
}

const Member* MemberList::find_name(std::string_view name) const {
  for (const Member& member : members) {
    if (member.info.name() == name) return &member;
  }
  return nullptr;
}

std::string encode_list(const MemberList& list) {
  std::string out(kMagic);
  wire::put(out, kFormatVersion);
  wire::put(out, list.version);
  wire::put(out, static_cast<std::uint32_t>(list.members.size()));
  for (const Member& member : list.members) put_member(out, member);
  return out;
}

Result<MemberList> decode_list(std::string_view key, std::string_view bytes) {
  if (!bytes.starts_with(kMagic)) return corrupt_value(key, "it is no list of RPC workers");
  wire::Reader reader(bytes.substr(kMagic.size()));
  const auto format = reader.integer<std::uint32_t>();
  if (reader.failed()) return corrupt_value(key, "it is cut short");
  if (format != kFormatVersion) {
    return corrupt_value(key, other_format_text(format, kFormatVersion));
  }
  MemberList list;
  list.version = reader.integer<std::uint64_t>();
  const std::size_t count = reader.integer<std::uint32_t>();
  if (reader.failed()) return corrupt_value(key, "it is cut short");
  // No more than the input can hold, so that a wrong count costs nothing.
  if (count > kMembersMax || count * kMemberBytesMin > reader.rest().size()) {
    return corrupt_value(key, "it counts more RPC workers than it has");
  }
  for (std::size_t index = 0; index < count; ++index) {
    std::optional<Member> member = get_member(reader);
    if (!member) return corrupt_value(key, "the record of an RPC worker in it is damaged");
    list.members.push_back(std::move(*member));
  }
  if (!reader.finished()) return corrupt_value(key, "it is longer than it should be");
  if (list.version == 0 || !is_sound(list.members)) {
    return corrupt_value(key, "its RPC workers are not in order, or not different");
  }
  return list;
}

// ---- decisions

Admission admit(const MemberList& list, const Member& newcomer, const Incarnations& gone) {
  Admission admission;
  MemberList next;
  next.version = list.version + 1;
  for (const Member& member : list.members) {
    if (member == newcomer) return {};
    const bool is_holder = member.info.id() == newcomer.info.id() ||
                           member.info.name() == newcomer.info.name() ||
                           member.incarnation == newcomer.incarnation;
    if (!is_holder) {
      next.members.push_back(member);
    } else if (!gone.contains(member.incarnation)) {
      admission.holders.push_back(member);
    }
  }
  if (!admission.holders.empty()) return admission;
  const auto place =
      std::find_if(next.members.begin(), next.members.end(),
                   [&](const Member& member) { return member.info.id() > newcomer.info.id(); });
  next.members.insert(place, newcomer);
  admission.next = std::move(next);
  return admission;
}

std::optional<MemberList> without(const MemberList& list, const Incarnations& leaving) {
  MemberList next = list;
  std::erase_if(next.members,
                [&](const Member& member) { return leaving.contains(member.incarnation); });
  if (next.members.size() == list.members.size()) return std::nullopt;
  ++next.version;
  return next;
}

std::string refusal_text(const Member& newcomer, const Member& holder) {
  if (holder.info.name() == newcomer.info.name()) {
    return duplicate_name_text(holder.info, newcomer.info.id());
  }
  return duplicate_id_text(newcomer.info.id());
}

// ---- leases

std::string encode_lease(const Lease& lease) {
  return fmt::format("{} {}", lease.beat, lease.acknowledged);
}

std::optional<Lease> decode_lease(std::string_view text) {
  Lease lease;
  if (!take_number(text, lease.beat) || !text.starts_with(' ')) return std::nullopt;
  text.remove_prefix(1);
  if (!take_number(text, lease.acknowledged) || !text.empty()) return std::nullopt;
  return lease;
}

std::vector<std::uint64_t> Leases::whom_to_watch(const MemberList& list, std::uint64_t self) const {
  std::vector<std::uint64_t> order;
  for (const Member& member : list.members) order.push_back(member.incarnation);
  std::sort(order.begin(), order.end());
  const std::size_t observer_count = std::min(kObserverCount, order.size());
  Incarnations wanted(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(observer_count));
  const bool watches_all = wanted.contains(self);
  const bool are_silent = std::all_of(wanted.begin(), wanted.end(),
                                      [this](std::uint64_t one) { return is_silent(one); });
  if (are_silent && !watches_all) {
    const auto place = std::upper_bound(order.begin(), order.end(), self);
    std::rotate(order.begin(), place, order.end());
    for (std::size_t index = 0; index < order.size() && index < kFollowersMax; ++index) {
      wanted.insert(order[index]);
    }
  }
  std::vector<std::uint64_t> whom;
  for (const Member& member : list.members) {
    const std::uint64_t other = member.incarnation;
    if (other == self) continue;
    if (watches_all || wanted.contains(other) || suspects_.contains(other)) whom.push_back(other);
  }
  return whom;
}

void Leases::suspect(std::uint64_t incarnation) { suspects_.try_emplace(incarnation, false); }

void Leases::note(std::uint64_t incarnation, std::string_view value, TimePoint when) {
  const auto [place, is_first] = sights_.try_emplace(incarnation);
  Sight& sight = place->second;
  const auto suspicion = suspects_.find(incarnation);
  const bool looked_since = suspicion != suspects_.end() && std::exchange(suspicion->second, true);
  if (is_first) {
    sight.value = value;
  } else if (!value.empty() && sight.value != value) {
    sight.value = value;
    sight.silence = Duration::zero();
    sight.renewed = true;
    if (looked_since) suspects_.erase(suspicion);
  } else {
    const Duration gap = std::max(when - sight.seen, Duration::zero());
    sight.silence += std::min(gap, kGapIntervalsMax * look_interval_);
  }
  sight.seen = std::max(sight.seen, when);
}

bool Leases::is_over(std::uint64_t incarnation) const {
  const auto sight = sights_.find(incarnation);
  return sight != sights_.end() && sight->second.silence >= lease_;
}

bool Leases::is_silent(std::uint64_t incarnation) const {
  const auto sight = sights_.find(incarnation);
  return sight != sights_.end() && sight->second.silence >= lease_ / 2;
}

bool Leases::was_renewed(std::uint64_t incarnation) const {
  const auto sight = sights_.find(incarnation);
  return sight != sights_.end() && sight->second.renewed;
}

void Leases::forget_absent(const MemberList& list) {
  Incarnations present;
  for (const Member& member : list.members) present.insert(member.incarnation);
  std::erase_if(sights_, [&](const auto& sight) { return !present.contains(sight.first); });
  std::erase_if(suspects_, [&](const auto& one) { return !present.contains(one.first); });
}

}  // namespace muster::rpc
