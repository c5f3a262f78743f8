#include "muster/rpc/value.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace shop {

enum class Colour : std::int16_t { Red = 1, Blue = -2 };
enum Loose { kLoose };

struct Point {
  double x = 0;
  double y = 0;
  friend bool operator==(const Point&, const Point&) = default;
};
template <typename Archive>
void describe_fields(Archive& archive, Point& point) {
  archive(point.x, point.y);
}

struct Order {
  std::string name{};
  std::vector<Point> path{};
  std::vector<float> weights{};
  std::optional<Colour> colour{};
  std::int32_t count = 1;
  friend bool operator==(const Order&, const Order&) = default;
};
template <typename Archive>
void describe_fields(Archive& archive, Order& order) {
  archive(order.name, order.path, order.weights);
  archive(order.colour, order.count);
  archive.require(order.count > 0, "an order of nothing");
}

struct Tree {
  std::int32_t label = 0;
  std::vector<Tree> children{};
  friend bool operator==(const Tree&, const Tree&) = default;
};
template <typename Archive>
void describe_fields(Archive& archive, Tree& tree) {
  archive(tree.label, tree.children);
}

struct Nothing {
  friend bool operator==(const Nothing&, const Nothing&) = default;
};
template <typename Archive>
void describe_fields(Archive&, Nothing&) {}

struct Unknown {
  int x = 0;
};
struct NoDefault {
  explicit NoDefault(int) {}
};
template <typename Archive>
void describe_fields(Archive&, NoDefault&) {}

}  // namespace shop

namespace muster::rpc {
namespace {

using namespace std::string_literals;
using namespace std::string_view_literals;

static_assert(Codable<std::int8_t> && Codable<unsigned char> && Codable<long> &&
              Codable<long long>);
static_assert(Codable<std::map<std::string, std::vector<std::optional<shop::Point>>>>);
static_assert(Codable<std::variant<std::monostate, int, std::string>> && Codable<std::tuple<>>);
static_assert(Codable<std::span<const std::byte>> && Codable<std::string_view>);
static_assert(Encodable<std::span<const float>> && !Decodable<std::span<const float>>);
static_assert(Encodable<const char (&)[4]> && !Decodable<const char*>);
static_assert(!Encodable<char> && !Encodable<wchar_t> && !Encodable<char8_t>);
static_assert(!Encodable<long double> && !Encodable<int*> && !Encodable<std::vector<char>>);
static_assert(!Encodable<shop::Unknown> && !Encodable<std::vector<shop::Unknown>>);
static_assert(!Encodable<std::map<int, shop::Unknown>> && !Encodable<shop::NoDefault>);
static_assert(Codable<shop::Colour> && !Encodable<shop::Loose>);
static_assert(kIsView<std::vector<std::string_view>> && !kIsView<std::vector<std::string>>);
static_assert(kIsView<std::map<int, std::optional<std::span<const std::byte>>>>);

template <typename... T>
std::string control_of(const T&... values) {
  Writer writer;
  writer.write(values...);
  EXPECT_TRUE(writer.ok());
  EXPECT_TRUE(writer.buffers().empty());
  return writer.take_control();
}

template <typename T>
void expect_round_trip(const T& value) {
  Writer writer;
  writer.write(value);
  ASSERT_TRUE(writer.finish());
  const auto decoded = decode<T>(writer.control(), writer.buffers());
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(*decoded, value);
  // What is cut off is noticed wherever the cut is.
  for (std::size_t size = 0; size < writer.size(); ++size) {
    EXPECT_FALSE(decode<T>(writer.control().substr(0, size), writer.buffers()));
  }
}

template <typename T>
std::string error_of(std::string_view control, std::span<const Buffer> buffers = {}) {
  const auto decoded = decode<T>(control, buffers);
  return decoded ? "" : decoded.error().message;
}

// They have the same signature.
TEST(Value, ARowOfAnEnumerationLooksLikeOneOfItsNumbers) {
  const std::vector<shop::Colour> colours = {shop::Colour::Red, shop::Colour::Blue};
  const std::vector<std::int16_t> numbers = {1, -2};
  Writer one;
  one.write(colours);
  Writer other;
  other.write(numbers);
  EXPECT_EQ(one.control(), other.control());
  EXPECT_EQ(decode<std::vector<shop::Colour>>(other.control()).value(), colours);
}

TEST(Value, ComesBackAsItWas) {
  expect_round_trip(true);
  expect_round_trip(std::numeric_limits<std::int64_t>::min());
  expect_round_trip(std::numeric_limits<std::uint64_t>::max());
  expect_round_trip(std::int8_t{-1});
  expect_round_trip(std::uint8_t{255});
  expect_round_trip(1.5F);
  expect_round_trip(-0.1);
  expect_round_trip(std::complex<float>(1, -2));
  expect_round_trip(std::byte{7});
  expect_round_trip(shop::Colour::Blue);
  expect_round_trip("text with \0 inside"s);
  expect_round_trip(std::vector<double>{1, 2, 3});
  expect_round_trip(std::vector<bool>{true, false, true});
  expect_round_trip(std::vector<std::string>{"", "a", "bc"});
  expect_round_trip(std::vector<std::byte>(3));
  expect_round_trip(std::array<std::int16_t, 3>{1, 2, 3});
  expect_round_trip(std::array<std::string, 2>{"a", "b"});
  expect_round_trip(std::optional<std::string>("x"));
  expect_round_trip(std::optional<std::string>());
  expect_round_trip(std::pair<int, std::string>(3, "c"));
  expect_round_trip(std::tuple<bool, float, std::vector<int>>(true, 2.0F, {5, 6}));
  expect_round_trip(std::map<std::string, std::vector<int>>{{"a", {1}}, {"b", {}}});
  expect_round_trip(std::unordered_map<int, std::string>{{1, "x"}, {2, "y"}, {3, ""}});
  expect_round_trip(std::set<int>{3, 1, 2});
  expect_round_trip(std::unordered_set<std::string>{"p", "q"});
  expect_round_trip(std::variant<std::monostate, int, std::string>("v"));
  expect_round_trip(std::variant<std::monostate, int, std::string>());
  expect_round_trip(shop::Order{"n", {{1, 2}, {3, 4}}, {0.5F}, shop::Colour::Red, 2});
  expect_round_trip(shop::Tree{1, {{2, {}}, {3, {{4, {}}}}}});
}

TEST(Value, OfTypesWithoutBytesComesBackToo) {
  expect_round_trip(std::vector<shop::Nothing>(5));
  expect_round_trip(std::vector<std::monostate>(3));
  expect_round_trip(std::vector<std::vector<std::monostate>>(2));
  expect_round_trip(std::map<int, std::monostate>{{1, {}}, {2, {}}});
  EXPECT_EQ(control_of(std::monostate(), std::tuple<>(), shop::Nothing()), "");
}

TEST(Value, HasTheBytesThatTheHeaderSays) {
  EXPECT_EQ(control_of(std::int32_t{0x01020304}, true, std::int16_t{-2}), "\4\3\2\1\1\xfe\xff"s);
  EXPECT_EQ(control_of(1.0F), "\0\0\x80\x3f"s);
  EXPECT_EQ(control_of("ab"), "\2\0\0\0ab"s);
  EXPECT_EQ(control_of("ab"s, "ab"sv), "\2\0\0\0ab\2\0\0\0ab"s);
  EXPECT_EQ(control_of(std::vector<std::uint16_t>{1, 2}), "\4\0\0\0\1\0\2\0"s);
  EXPECT_EQ(control_of(std::vector<bool>{true, false}), "\2\0\0\0\1\0"s);
  EXPECT_EQ(control_of(std::array<std::uint8_t, 2>{1, 2}), "\1\2"s);
  EXPECT_EQ(control_of(std::optional<std::uint8_t>(5), std::optional<int>()), "\1\5\0"s);
  EXPECT_EQ(control_of(std::map<std::uint8_t, bool>{{2, true}, {1, false}}), "\2\0\0\0\1\0\2\1"s);
  EXPECT_EQ(control_of(std::variant<int, std::uint8_t>(std::uint8_t{9})), "\1\x9"s);
  EXPECT_EQ(control_of(std::vector<std::monostate>(2)), "\2\0\0\0\0\0"s);
  EXPECT_EQ(control_of(shop::Point{}), std::string(16, '\0'));
}

TEST(Value, OfAFewNumbersNeedsNoMemoryFromTheHeap) {
  Writer writer;
  writer.write(1, 2);
  const auto* const object = reinterpret_cast<const char*>(&writer);
  EXPECT_GE(writer.control().data(), object);
  EXPECT_LT(writer.control().data(), object + sizeof writer);
}

TEST(Writer, WritesBehindAHead) {
  Writer writer("head"s);
  writer.write(std::uint8_t{'!'});
  EXPECT_EQ(writer.control(), "head!");
  EXPECT_EQ(writer.take_control(), "head!");
}

TEST(Writer, KeepsWhatIsShortInTheControlPartAndPutsTheRestBeside) {
  Writer writer;
  writer.write(std::string(kOutOfBandBytesMin - 1, 'a'));
  EXPECT_TRUE(writer.buffers().empty());
  writer.write(std::string(kOutOfBandBytesMin, 'b'));
  EXPECT_EQ(writer.buffers().size(), 1U);
  EXPECT_EQ(writer.size(), 4 + kOutOfBandBytesMin - 1 + 4);
}

TEST(Writer, DoesNotCopyWhatIsMovedIn) {
  std::vector<float> numbers(10'000, 1.0F);
  const void* const memory = numbers.data();
  shop::Order order{.name = std::string(20'000, 'n')};
  const void* const name = order.name.data();
  std::vector<std::vector<float>> rows;
  rows.emplace_back(5'000, 2.0F);
  const void* const row = rows[0].data();

  Writer writer;
  writer.write(std::move(numbers), std::move(order), std::optional(std::move(rows)));
  ASSERT_EQ(writer.buffers().size(), 3U);
  EXPECT_EQ(writer.buffers()[0].data(), memory);
  EXPECT_FALSE(writer.buffers()[0].is_borrowed());
  EXPECT_EQ(writer.buffers()[1].data(), name);
  EXPECT_EQ(writer.buffers()[2].data(), row);
}

TEST(Writer, CopiesLvaluesUnlessTheyAreLentToIt) {
  const std::vector<float> numbers(10'000, 1.0F);
  Writer copying;
  copying.write(numbers);
  ASSERT_EQ(copying.buffers().size(), 1U);
  EXPECT_NE(static_cast<const void*>(copying.buffers()[0].data()), numbers.data());
  EXPECT_FALSE(copying.buffers()[0].is_borrowed());

  Writer lending(Lend::Lvalues);
  lending.write(numbers);
  ASSERT_EQ(lending.buffers().size(), 1U);
  EXPECT_EQ(static_cast<const void*>(lending.buffers()[0].data()), numbers.data());
  EXPECT_TRUE(lending.buffers()[0].is_borrowed());
}

TEST(Writer, NeverCopiesLargeBuffersAndSpans) {
  const std::vector<std::byte> bytes(kOutOfBandBytesMin);
  const std::vector<double> numbers(kOutOfBandBytesMin);
  Writer writer;
  writer.write(Buffer::borrow(bytes), std::span<const double>(numbers));
  ASSERT_EQ(writer.buffers().size(), 2U);
  EXPECT_EQ(writer.buffers()[0].data(), bytes.data());
  EXPECT_EQ(static_cast<const void*>(writer.buffers()[1].data()), numbers.data());
}

TEST(Writer, RefusesANullPointerAndWhatItsTypeRefuses) {
  Writer writer;
  const char* text = nullptr;
  writer.write(text);
  EXPECT_FALSE(writer.ok());
  ASSERT_FALSE(writer.finish());
  EXPECT_EQ(writer.finish().error().message, "a null pointer was passed for a text");

  Writer of_order;
  of_order.write(shop::Order{.count = 0});
  EXPECT_EQ(of_order.finish().error().message, "an order of nothing");
}

shop::Tree chain(std::size_t length) {
  shop::Tree tree;
  for (std::size_t i = 1; i < length; ++i) {
    shop::Tree parent;
    parent.children.push_back(std::move(tree));
    tree = std::move(parent);
  }
  return tree;
}

TEST(Value, IsNestedAsDeepAsTheLimitAndNoDeeper) {
  expect_round_trip(chain(kDepthMax));
  Writer writer;
  writer.write(chain(kDepthMax + 1));
  EXPECT_FALSE(writer.ok());

  std::string control;
  for (std::size_t i = 0; i < 100'000; ++i) control += "\0\0\0\0\1\0\0\0"s;
  EXPECT_EQ(error_of<shop::Tree>(control),
            "at byte 800 of 800000: structures are nested deeper "
            "than 100");
}

TEST(Reader, SharesWhatCameBesideAndCopiesWhatCameInside) {
  Writer writer;
  const Buffer small = copy_of(std::vector<std::byte>(5, std::byte{1}));
  const Buffer large = copy_of(std::vector<std::byte>(kOutOfBandBytesMin, std::byte{2}));
  writer.write(small, large);
  Reader reader(writer.control(), writer.buffers());
  const auto read_small = reader.read<Buffer>();
  const auto read_large = reader.read<Buffer>();
  EXPECT_TRUE(reader.finish());
  EXPECT_EQ(read_small.size(), 5U);
  EXPECT_EQ(read_small.data()[4], std::byte{1});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(read_small.data()) % kBufferAlignment, 0U);
  EXPECT_EQ(read_large.data(), large.data());
  EXPECT_EQ(read_large.owner(), large.owner());
}

TEST(Reader, GivesTheSameBytesToEveryTypeThatIsBytes) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{3}, 2 * kOutOfBandBytesMin}) {
    const std::vector<std::byte> bytes(size, std::byte{9});
    Writer writer;
    writer.write(bytes);
    Reader reader(writer.control(), writer.buffers());
    const auto view = reader.read<std::span<const std::byte>>();
    EXPECT_TRUE(reader.finish());
    EXPECT_EQ(std::vector(view.begin(), view.end()), bytes);
    EXPECT_EQ(decode<Buffer>(writer.control(), writer.buffers())->size(), size);
  }
}

TEST(Reader, TakesNumbersFromBuffersThatAreNotAligned) {
  std::vector<std::byte> bytes(8 * 2'000 + 1);
  std::vector<double> numbers(2'000);
  std::iota(numbers.begin(), numbers.end(), 0.5);
  std::memcpy(bytes.data() + 1, numbers.data(), 8 * numbers.size());
  const Buffer odd = Buffer::borrow(std::span<const std::byte>(bytes).subspan(1));
  Writer writer;
  writer.write(odd);
  EXPECT_EQ(*decode<std::vector<double>>(writer.control(), writer.buffers()), numbers);
}

TEST(Reader, SaysWhatIsWrongAndWhere) {
  EXPECT_EQ(error_of<bool>("\2"), "at byte 1 of 1: a flag is neither 0 nor 1");
  EXPECT_EQ(error_of<int>("\1\2\3"), "at byte 0 of 3: it ends too early");
  EXPECT_EQ(error_of<int>("\1\2\3\4\5\6"), "2 of 6 bytes are left over");
  EXPECT_EQ(error_of<std::string>("\3\0\0\0ab"sv), "at byte 4 of 6: it ends too early");
  EXPECT_EQ(error_of<std::vector<int>>("\5\0\0\0\1\1\1\1\1"sv),
            "at byte 9 of 9: the last number of a list is cut off");
  EXPECT_EQ((error_of<std::variant<bool, int>>("\2"sv)),
            "at byte 1 of 1: a variant has an alternative that is not known here");
  EXPECT_EQ((error_of<std::map<std::uint8_t, std::uint8_t>>("\2\0\0\0\1\1\1\2"sv)),
            "at byte 8 of 8: a map has the same key twice");
  EXPECT_EQ(error_of<std::set<std::uint8_t>>("\2\0\0\0\1\1"sv),
            "at byte 6 of 6: a set has the same element twice");
  EXPECT_EQ(error_of<std::vector<std::monostate>>("\1\0\0\0\1"sv),
            "at byte 5 of 5: the padding of a container is not zero");
  EXPECT_EQ(error_of<std::string>("\xff\xff\xff\xff"sv), "at byte 4 of 4: a buffer is missing");
  const Buffer buffers[] = {copy_of(std::vector<std::byte>(1)), Buffer()};
  EXPECT_EQ(error_of<bool>("\1", buffers), "2 of 2 buffers are left over");
  EXPECT_EQ(error_of<shop::Order>(std::string(17, '\0')), "at byte 17 of 17: an order of nothing");
}

TEST(Reader, AllocatesNothingForACountThatCannotBe) {
  const char* const kText = "at byte 4 of 4: a container announces more elements than there can be";
  EXPECT_EQ(error_of<std::vector<std::string>>("\xfe\xff\xff\xff"sv), kText);
  EXPECT_EQ((error_of<std::map<int, int>>("\xfe\xff\xff\xff"sv)), kText);
  EXPECT_EQ(error_of<std::vector<shop::Nothing>>("\xfe\xff\xff\xff"sv), kText);
  EXPECT_EQ(error_of<std::vector<double>>("\xf8\xff\xff\xff"sv),
            "at byte 4 of 4: it ends too early");
}

TEST(Reader, KeepsTheFirstProblemAndReadsZerosAfterIt) {
  Reader reader("\2\1\1\1\1");
  EXPECT_FALSE(reader.read<bool>());
  reader.fail("another");
  EXPECT_EQ(reader.read<int>(), 0);
  EXPECT_EQ(reader.read<std::string>(), "");
  EXPECT_TRUE(reader.read<std::vector<std::string>>().empty());
  EXPECT_EQ(reader.finish().error().message, "at byte 1 of 5: a flag is neither 0 nor 1");
}

// Every byte of a message replaced by every other one: an answer, never a crash or much memory.
TEST(Reader, SurvivesEveryByteThatIsChanged) {
  using Everything =
      std::tuple<shop::Order, shop::Tree, std::map<std::string, std::vector<std::vector<bool>>>,
                 std::variant<std::monostate, std::string, std::vector<float>>,
                 std::optional<Buffer>, std::set<std::string>>;
  Everything everything;
  std::get<0>(everything) = {"n", {{1, 2}}, {0.5F}, shop::Colour::Red, 2};
  std::get<1>(everything) = {1, {{2, {}}}};
  std::get<2>(everything)["k"] = {std::vector<bool>{true}, std::vector<bool>()};
  std::get<3>(everything) = std::vector<float>(4'000, 1.0F);
  std::get<4>(everything).emplace();
  std::get<5>(everything) = {"x", "y"};
  Writer writer;
  writer.write(std::move(everything));
  const std::vector<Buffer> buffers = writer.buffers();
  std::string control = writer.take_control();
  int decoded_count = 0;
  for (char& place : control) {
    const char before = place;
    for (int value = 0; value < 256; ++value) {
      place = static_cast<char>(value);
      if (decode<Everything>(control, buffers)) ++decoded_count;
    }
    place = before;
  }
  EXPECT_GT(decoded_count, static_cast<int>(control.size()));
  EXPECT_TRUE(decode<Everything>(control, buffers));
}

// ---- how much may be made of few bytes

template <typename T>
std::string row_of(std::size_t count) {
  Writer writer;
  writer.write(std::vector<T>(count));
  return writer.take_control();
}
// How many elements of so many bytes one message may have, if each of them has one byte there.
constexpr std::size_t most_of(std::size_t bytes_each) {
  constexpr std::size_t kCountBytes = 4;
  return (kReadBytesMin + kReadBytesPerByte * kCountBytes) / (bytes_each - kReadBytesPerByte);
}
constexpr const char* kTooMuch = "its values would take too much memory for so few bytes";

TEST(Reader, MakesMuchOfFewBytesUpToItsLimitAndNoMore) {
  using Rows = std::optional<std::array<double, 1000>>;
  constexpr std::size_t kMost = most_of(sizeof(Rows));
  const auto whole = decode<std::vector<Rows>>(row_of<Rows>(kMost));
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->size(), kMost);
  const auto refused = decode<std::vector<Rows>>(row_of<Rows>(kMost + 1));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find(kTooMuch), std::string::npos) << refused.error().message;
}

TEST(Reader, CountsAllThatIsMadeOfOneMessage) {
  using Row = std::vector<std::optional<std::array<double, 1000>>>;
  constexpr std::size_t kEach = most_of(sizeof(Row::value_type)) / 100;
  EXPECT_TRUE(decode<std::vector<Row>>(control_of(std::vector<Row>(99, Row(kEach)))));
  EXPECT_FALSE(decode<std::vector<Row>>(control_of(std::vector<Row>(102, Row(kEach)))));
}

struct Wide {
  static inline std::int64_t last_number = 0;

  std::array<std::optional<double>, 500> all{};
  std::int64_t number = ++last_number;  // all of them are different
  friend bool operator<(const Wide& a, const Wide& b) { return a.number < b.number; }
};
template <typename Archive>
void describe_fields(Archive&, Wide&) {}  // and none has a byte

TEST(Reader, CountsTheElementsOfMapsAndSets) {
  constexpr std::size_t kMost = most_of(sizeof(Wide) + kNodeBytes);
  constexpr std::size_t kMostPairs = most_of(sizeof(std::pair<const Wide, Wide>) + kNodeBytes);
  EXPECT_TRUE(decode<std::set<Wide>>(row_of<Wide>(kMost)));
  EXPECT_FALSE(decode<std::set<Wide>>(row_of<Wide>(kMost + 1)));
  EXPECT_TRUE((decode<std::map<Wide, Wide>>(row_of<Wide>(kMostPairs))));
  EXPECT_FALSE((decode<std::map<Wide, Wide>>(row_of<Wide>(kMostPairs + 1))));
}

TEST(Reader, MakesAsMuchAsItLikesOfWhatTakesLittleMore) {
  using Texts = std::vector<std::optional<std::string>>;
  EXPECT_TRUE(decode<Texts>(row_of<std::optional<std::string>>(2'000'000)));
}

TEST(Signature, SpellsTheTypesOfACall) {
  EXPECT_EQ((signature_of<float(std::int64_t, std::string, std::vector<double>)>()),
            "(i64,str,vec<f64>)->f32");
  EXPECT_EQ(signature_of<void()>(), "()->void");
  EXPECT_EQ((signature_of<bool(const char*, const std::string&, std::string_view)>()),
            "(str,str,str)->bool");
  EXPECT_EQ((signature_of<Buffer(std::vector<std::byte>, std::span<const std::byte>)>()),
            "(bytes,bytes)->bytes");
  EXPECT_EQ((signature_of<std::vector<float>(std::span<const float>)>()), "(vec<f32>)->vec<f32>");
  EXPECT_EQ((signature_of<std::map<int, bool>(std::unordered_map<int, bool>)>()),
            "(map<i32,bool>)->map<i32,bool>");
  EXPECT_EQ((signature_of<std::tuple<int, std::pair<bool, std::byte>>(std::array<float, 3>)>()),
            "(arr<f32>*3)->tup<i32,tup<bool,byte>>");
  EXPECT_EQ((signature_of<shop::Order(std::variant<std::monostate, shop::Colour>)>()),
            "(var<none,i16>)->{str,vec<{f64,f64}>,vec<f32>,opt<i16>,i32}");
  EXPECT_EQ((signature_of<void(shop::Tree, shop::Nothing)>()), "({i32,vec<^1>},{})->void");
  EXPECT_EQ((signature_of<void(std::tuple<>, std::complex<float>)>()), "(tup<>,c64)->void");
}

TEST(Signature, HasAHashThatIsTheSameEverywhere) {
  EXPECT_EQ(signature_hash<void()>(), hash_of_signature("()->void"));
  EXPECT_NE(signature_hash<void()>(), signature_hash<bool()>());
  EXPECT_NE((signature_hash<int(int, long)>()), (signature_hash<int(long, int)>()));
  EXPECT_EQ(hash_of_signature("(i64,i64)->i64"), 6496573372641301384U);
}

}  // namespace
}  // namespace muster::rpc
