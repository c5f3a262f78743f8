// References whose types are sent alike, and such whose types take long to spell.
#include "muster/rref/rref.h"
#include "tests/rref/cluster.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace muster::rref {
namespace {

using rpc::CallErrorKind;
using rpc::Procedure;
using rpc::RRef;
using testing::Worker;
using testing::Workers;

using Number = std::int64_t;
using Ordered = std::map<std::string, Number>;
using Hashed = std::unordered_map<std::string, Number>;

// Doubles with each level.
template <int levels>
struct Nested {
  using Half = typename Nested<levels - 1>::Type;
  using Type = std::pair<Half, Half>;
};
template <>
struct Nested<0> {
  using Type = std::tuple<Number, std::string, bool>;
};
using Long = Nested<10>::Type;
using AlmostTheSame = std::pair<Nested<9>::Type, std::pair<Nested<8>::Type, Number>>;

const Procedure<Ordered(Number)> kMake("make");
const Procedure<Number(RRef<Hashed>)> kSize("size");
const Procedure<Number(RRef<Ordered>)> kSizeOrdered("size.ordered");
const Procedure<Hashed(RRef<Hashed>)> kCopy("copy");
const Procedure<Long(Number)> kMakeLong("make.long");
const Procedure<Number(RRef<Long>)> kNumberOfLong("number.of.long");

Number number_of(const Nested<0>::Type& value) { return std::get<0>(value); }
template <typename T>
Number number_of(const std::pair<T, T>& value) {
  return number_of(value.first);
}
Nested<0>::Type& first_of(Nested<0>::Type& value) { return value; }
template <typename T>
Nested<0>::Type& first_of(std::pair<T, T>& value) {
  return first_of(value.first);
}

template <typename T>
Number size_of(const RRef<T>& reference) {
  const auto value = reference.local_value();
  if (!value) throw rpc::CallException(value.error());
  return static_cast<Number>((*value)->size());
}

class AlikeTypes : public ::testing::Test {
 protected:
  void SetUp() override {
    workers_ = testing::start_group(
        store_, 2, [](Worker& worker) { add_functions(worker); }, [](rpc::AgentOptions&) {});
  }
  static void add_functions(Worker& worker) {
    ASSERT_TRUE(worker.functions.add(kMake.name(), [](Number number) {
      return Ordered{{"a", number}, {"b", number + 1}};
    }));
    ASSERT_TRUE(worker.functions.add(kSize.name(), size_of<Hashed>));
    ASSERT_TRUE(worker.functions.add(kSizeOrdered.name(), size_of<Ordered>));
    ASSERT_TRUE(worker.functions.add(kCopy.name(), [](const RRef<Hashed>& reference) {
      auto copy = reference.to_here();
      if (!copy) throw rpc::CallException(copy.error());
      return std::move(*copy);
    }));
    ASSERT_TRUE(worker.functions.add(kMakeLong.name(), [](Number number) {
      Long made;
      std::get<0>(first_of(made)) = number;
      return made;
    }));
    ASSERT_TRUE(worker.functions.add(kNumberOfLong.name(), [](const RRef<Long>& reference) {
      const auto value = reference.local_value();
      if (!value) throw rpc::CallException(value.error());
      return number_of(**value);
    }));
  }
  rpc::Agent& agent(std::size_t rank) { return *workers_[rank]->agent; }

  rpc::testing::StoreHost store_;
  Workers workers_;
};

TEST_F(AlikeTypes, AreNotTakenForOneAnotherWhereTheValueIs) {
  const auto ordered = rpc::remote(agent(0), "worker1", kMake, 5).value();
  EXPECT_EQ(ordered.call(kSizeOrdered).value(), 2);
  // The same value as what it is not; on the way nobody can tell.
  const RRef<Hashed> hashed(ordered.handle());
  const auto size = hashed.call(kSize);
  ASSERT_FALSE(size);
  EXPECT_EQ(size.error().kind, CallErrorKind::Remote);
  EXPECT_NE(size.error().message.find("another C++ type"), std::string::npos)
      << size.error().message;
  EXPECT_NE(size.error().message.find("map<str,i64>"), std::string::npos) << size.error().message;
  const auto copy = hashed.call(kCopy);
  ASSERT_FALSE(copy);
  EXPECT_NE(copy.error().message.find("another C++ type"), std::string::npos)
      << copy.error().message;
  EXPECT_EQ(hashed.to_here().value(), (Hashed{{"a", 5}, {"b", 6}})) << "a copy can be of any";
}

TEST_F(AlikeTypes, AreToldApartByAllOfATypeThatTakesLongToSpell) {
  const std::string& text = rpc::type_text<Long>();
  EXPECT_EQ(text.size(), rpc::kShortSignatureBytesMax);
  EXPECT_EQ(text.substr(0, 500), rpc::type_text<AlmostTheSame>().substr(0, 500));
  EXPECT_NE(text, rpc::type_text<AlmostTheSame>());
}

TEST_F(AlikeTypes, GoAnywhereThoughTheyTakeLongToSpell) {
  const auto there = rpc::remote(agent(0), "worker1", kMakeLong, 5).value();
  EXPECT_EQ(there.call(kNumberOfLong).value(), 5);
  EXPECT_EQ(number_of(there.to_here().value()), 5);
  Long here_value;
  std::get<0>(first_of(here_value)) = 7;
  const auto here = rpc::make_rref(agent(0), here_value).value();
  EXPECT_EQ(here.call(kNumberOfLong).value(), 7);
}

}  // namespace
}  // namespace muster::rref
