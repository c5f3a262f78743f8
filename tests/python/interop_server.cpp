// A C++ worker for tests of Python and C++ in one job: it echoes values of every type, keeps
// objects, and calls back.
//
//   interop_server STORE WORLD_SIZE
//
// It is worker "server", of rank 0, until all shut down. The lines of C++ in docs/python-cpp.md
// stand here.

#include "muster/rpc.h"
#include "muster/rpc/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

namespace rpc = muster::rpc;

// clang-format off
struct Point {
  double x = 0;
  double y = 0;
};
template <typename Archive>
void describe_fields(Archive& archive, Point& point) { archive(point.x, point.y); }
// clang-format on

struct Tree {
  std::int64_t value = 0;
  std::vector<Tree> children;
};
template <typename Archive>
void describe_fields(Archive& archive, Tree& tree) {
  archive(tree.value, tree.children);
}

// Through another structure, and back.
struct Chain {
  std::string name;
  std::optional<std::vector<std::pair<Point, Chain>>> next;
};
template <typename Archive>
void describe_fields(Archive& archive, Chain& chain) {
  archive(chain.name, chain.next);
}

struct Empty {};
template <typename Archive>
void describe_fields(Archive& archive, Empty&) {
  archive();
}

enum class Color : std::uint16_t { Red, Green, Blue };

// Never sent.
class Counter {
 public:
  explicit Counter(std::int64_t start) : value_(start) {}
  std::int64_t add(std::int64_t amount) { return value_ += amount; }

 private:
  std::int64_t value_;
};
template <>
inline constexpr bool muster::rpc::kIsObject<Counter> = true;

namespace {

using Numbers = std::vector<double>;
using rpc::Procedure;
using rpc::RRef;

// Told to Python, which has no other way to know the names that a compiler has for types.
std::map<std::string, std::string> signatures;

void require(const muster::Result<>& done) {
  if (done) return;
  fmt::print(stderr, "interop_server: {}\n", done.error().message);
  std::exit(1);
}

template <typename R, typename... Args, typename F>
void add(const Procedure<R(Args...)>& procedure, F function) {
  signatures[procedure.name()] = rpc::signature_of<R(Args...)>();
  require(rpc::define(procedure, std::move(function)));
}

template <typename... T>
void define_echoes() {
  (add(Procedure<T(T)>("echo " + rpc::type_text<T>()), [](T value) { return value; }), ...);
}

// Answers with the bytes that it is given, whatever its result is said to be.
class Liar final : public rpc::Function {
 public:
  explicit Liar(const std::string& type) : Function("lie " + type, "(bytes)->" + type, {}) {}

  bool is_asynchronous() const override { return false; }
  void invoke(rpc::Reader& arguments, rpc::Reply reply) const override {
    const auto bytes = arguments.read<rpc::Buffer>();
    if (auto finished = arguments.finish(); !finished) {
      return refuse(finished.error(), std::move(reply));
    }
    rpc::Writer writer;
    writer.put_raw(bytes.bytes());
    reply.succeed(std::move(writer));
  }
};

void define_lies() {
  for (const char* const type : {"i64",
                                 "bool",
                                 "c128",
                                 "none",
                                 "void",
                                 "str",
                                 "bytes",
                                 "tensor",
                                 "vec<f64>",
                                 "vec<str>",
                                 "vec<none>",
                                 "vec<{}>",
                                 "arr<f64>*3",
                                 "arr<bool>*3",
                                 "arr<{}>*1000",
                                 "set<i64>",
                                 "set<vec<u8>>",
                                 "map<str,i64>",
                                 "map<none,str>",
                                 "opt<bool>",
                                 "var<none,i64,str>",
                                 "tup<u8,str,f32>",
                                 "{i64,vec<^1>}",
                                 "{^1}",
                                 "{opt<{^2,^1}>,bool}",
                                 "rref<vec<f64>>",
                                 "vec<rref<python>>",
                                 "map<set<map<u8,bool>>,vec<tensor>>"}) {
    require(rpc::functions().add(std::make_unique<Liar>(type)));
  }
}

// What Python defines.
const Procedure<double(double, double)> kPythonScale("python.scale");
const Procedure<Numbers(std::int64_t)> kPythonRange("python.range");
const Procedure<double(RRef<Numbers>)> kPythonTotal("python.total");
const Procedure<std::map<std::string, Tree>(std::vector<Point>, std::optional<std::string>)>
    kPythonForest("python.forest");

template <typename T>
T value_or_throw(rpc::CallResult<T> result) {
  if (!result) throw std::runtime_error(result.error().type + "|" + result.error().message);
  return std::move(*result);
}

// clang-format off
const Procedure<double(std::vector<double>, double)> kScaledNorm("scaled_norm");

double scaled_norm(std::vector<double> values, double scale) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return scale * std::sqrt(sum);
}
// clang-format on

void define_values() {
  using std::string;
  define_echoes<std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t,
                std::uint32_t, std::uint64_t, float, double, std::complex<float>,
                std::complex<double>, bool, std::byte, std::monostate, string, rpc::Buffer,
                rpc::Tensor>();
  define_echoes<std::vector<std::int8_t>, std::vector<std::int16_t>, std::vector<std::int32_t>,
                std::vector<std::int64_t>, std::vector<std::uint8_t>, std::vector<std::uint16_t>,
                std::vector<std::uint32_t>, std::vector<std::uint64_t>, std::vector<float>,
                std::vector<double>, std::vector<std::complex<float>>,
                std::vector<std::complex<double>>, std::vector<bool>, std::vector<string>,
                std::vector<rpc::Tensor>, std::vector<std::monostate>, std::vector<Empty>,
                std::vector<std::vector<double>>>();
  define_echoes<std::array<double, 3>, std::array<std::byte, 4>, std::array<string, 2>,
                std::array<std::array<std::int32_t, 2>, 2>, std::array<bool, 0>,
                std::set<std::int64_t>, std::unordered_set<string>, std::set<Numbers>,
                std::set<std::set<string>>, std::map<string, std::int64_t>,
                std::unordered_map<std::int32_t, std::vector<string>>,
                std::map<std::pair<string, bool>, Numbers>, std::map<Numbers, std::monostate>,
                std::optional<string>, std::optional<std::optional<std::int64_t>>,
                std::vector<std::optional<double>>, std::pair<std::int64_t, string>, std::tuple<>,
                std::tuple<bool, std::tuple<float>, Numbers>>();
  define_echoes<std::variant<std::int64_t, double, string>, std::variant<bool, Numbers>,
                std::variant<double, std::int64_t>, std::variant<std::monostate, Point, string>,
                std::map<std::variant<std::int64_t, string>, std::vector<std::variant<bool, Tree>>>,
                std::variant<std::vector<string>, std::set<string>, std::map<string, string>>,
                Point, Tree, Chain, Empty, std::map<string, Point>, RRef<Numbers>, RRef<Counter>,
                std::vector<RRef<Numbers>>>();
  add(Procedure<Color(Color)>("next_color"),
      [](Color color) { return static_cast<Color>((static_cast<int>(color) + 1) % 3); });
  add(Procedure<std::int64_t(std::vector<Color>)>("count_blue"), [](std::vector<Color> colors) {
    return static_cast<std::int64_t>(std::count(colors.begin(), colors.end(), Color::Blue));
  });
  add(Procedure<string(string)>("not_utf8"), [](string text) { return text + "\xff\xfe"; });
  add(Procedure<std::int64_t(std::vector<Empty>)>("count_empty"),
      [](std::vector<Empty> all) { return static_cast<std::int64_t>(all.size()); });
  add(Procedure<std::int64_t(std::variant<std::int64_t, double, bool>)>("alternative"),
      [](std::variant<std::int64_t, double, bool> value) {
        return static_cast<std::int64_t>(value.index());
      });
  add(Procedure<string(rpc::Tensor)>("describe"),
      [](rpc::Tensor tensor) { return tensor.defined() ? rpc::describe(tensor) : "none"; });
  add(Procedure<double(rpc::Tensor)>("first"), [](rpc::Tensor tensor) {
    const auto compact = tensor.copy();
    if (!compact) throw std::invalid_argument(compact.error().message);
    const auto values = compact->values<double>();
    if (!values) throw std::invalid_argument(values.error().message);
    return values->front();
  });
  add(Procedure<rpc::Tensor()>("odd_bools"), [] {
    auto bytes = rpc::Tensor::from(std::vector<std::uint8_t>{0, 1, 2, 255}, {4});
    return *bytes->viewed_as(rpc::DType::Bool);
  });
  // One byte, again and again, with a row of two such.
  add(Procedure<rpc::Tensor()>("expanded_bools"), [] {
    const rpc::Buffer storage = rpc::copy_of(std::vector<std::byte>{std::byte{2}, std::byte{0}});
    return rpc::Tensor::create(
               {.dtype = rpc::DType::Bool, .shape = {std::int64_t{1} << 40, 2}, .strides = {0, 1}},
               storage)
        .value();
  });
  add(Procedure<void(string)>("throw"), [](string why) -> void { throw std::out_of_range(why); });
}

class Kept {
 public:
  RRef<Numbers> swap(RRef<Numbers> reference) {
    const std::lock_guard lock(mutex_);
    return std::exchange(reference_, std::move(reference));
  }

 private:
  std::mutex mutex_;  // guards what follows
  RRef<Numbers> reference_;
};

void define_references() {
  add(Procedure<Counter(std::int64_t)>("counter.make"),
      [](std::int64_t start) { return Counter(start); });
  add(Procedure<std::int64_t(RRef<Counter>, std::int64_t)>("counter.add"),
      rpc::method(&Counter::add));
  add(Procedure<Numbers(std::int64_t)>("numbers.make"), [](std::int64_t count) {
    if (count < 0) throw std::length_error("no numbers");
    return Numbers(static_cast<std::size_t>(count), 0.5);
  });
  add(Procedure<double(RRef<Numbers>)>("numbers.sum"), [](const RRef<Numbers>& reference) {
    double sum = 0;
    for (const double number : value_or_throw(reference.to_here())) sum += number;
    return sum;
  });
  add(Procedure<Point(double)>("point.make"), [](double x) { return Point{x, -x}; });
  add(Procedure<void()>("nothing"), [] {});
  add(Procedure<RRef<Numbers>(RRef<Numbers>)>("keep"),
      [kept = std::make_shared<Kept>()](RRef<Numbers> reference) {
        return kept->swap(std::move(reference));
      });
}

void define_calls() {
  add(Procedure<std::map<std::string, std::string>()>("debug_info"),
      [] { return rpc::debug_info(); });
  using std::string;
  add(Procedure<double(string, double, double)>("call.scale"),
      [](string worker, double value, double by) {
        return value_or_throw(rpc::call(worker, kPythonScale, value, by));
      });
  add(Procedure<Numbers(string, std::int64_t)>("call.range"),
      [](string worker, std::int64_t count) {
        const auto kept = value_or_throw(rpc::remote(worker, kPythonRange, count));
        return value_or_throw(kept.to_here());
      });
  add(Procedure<double(string, RRef<Numbers>)>("call.total"),
      [](string worker, const RRef<Numbers>& reference) {
        return value_or_throw(rpc::call(worker, kPythonTotal, reference));
      });
  add(Procedure<std::map<string, Tree>(string, std::vector<Point>, std::optional<string>)>(
          "call.forest"),
      [](string worker, std::vector<Point> points, std::optional<string> name) {
        return value_or_throw(rpc::call(worker, kPythonForest, points, name));
      });
  // The C++ type, where Python has defined another.
  add(Procedure<double(string)>("call.otherwise"), [](string worker) {
    const Procedure<double(float)> other("python.scale");
    return value_or_throw(rpc::call(worker, other, 1.0F));
  });
}

int serve(std::string store, std::int64_t world_size) {
  const auto defined = rpc::define(kScaledNorm, scaled_norm);
  require(defined);
  define_values();
  define_references();
  define_calls();
  define_lies();
  using Signatures = std::map<std::string, std::string>;
  require(rpc::define(Procedure<Signatures()>("signatures"), [] { return signatures; }));
  rpc::InitOptions options;
  options.name = "server";
  options.rank = 0;
  options.world_size = world_size;
  options.store = std::move(store);
  require(rpc::init(std::move(options)));
  const auto ended = rpc::shutdown();
  if (!ended) fmt::print(stderr, "interop_server: {}\n", rpc::render(ended.error()));
  return ended ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: interop_server STORE WORLD_SIZE\n");
    return 2;
  }
  return serve(argv[1], std::atoll(argv[2]));
}
