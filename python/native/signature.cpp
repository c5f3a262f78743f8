#include "python/native/signature.h"

#include "muster/rpc/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace muster::python {
namespace {

struct Name {
  std::string_view text;
  TypeKind kind;
};
// Those that stand alone.
constexpr Name kSimple[] = {
    {"i8", TypeKind::I8},     {"i16", TypeKind::I16},       {"i32", TypeKind::I32},
    {"i64", TypeKind::I64},   {"u8", TypeKind::U8},         {"u16", TypeKind::U16},
    {"u32", TypeKind::U32},   {"u64", TypeKind::U64},       {"f32", TypeKind::F32},
    {"f64", TypeKind::F64},   {"c64", TypeKind::C64},       {"c128", TypeKind::C128},
    {"byte", TypeKind::Byte}, {"bool", TypeKind::Bool},     {"none", TypeKind::None},
    {"str", TypeKind::Str},   {"bytes", TypeKind::Bytes},   {"tensor", TypeKind::Tensor},
    {"void", TypeKind::Void}, {"python", TypeKind::Python}, {"object", TypeKind::Object},
};

constexpr std::size_t kAny = 257;
// Those with parts in angle brackets.
struct Template {
  std::string_view text;
  TypeKind kind;
  std::size_t least;
  std::size_t most;
};
constexpr Template kTemplates[] = {
    {"vec", TypeKind::Vector, 1, 1},   {"arr", TypeKind::Array, 1, 1},
    {"set", TypeKind::Set, 1, 1},      {"map", TypeKind::Map, 2, 2},
    {"opt", TypeKind::Optional, 1, 1}, {"var", TypeKind::Variant, 1, 256},
    {"tup", TypeKind::Tuple, 0, kAny}, {"rref", TypeKind::Reference, 1, 1},
};

bool is_letter(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
         (letter >= '0' && letter <= '9') || letter == '_';
}

// What may stand in the name that a compiler has for a type.
bool is_of_object_name(char letter) {
  return is_letter(letter) || std::string_view(".$*@:").find(letter) != std::string_view::npos;
}

// Where a type stands, which says what it may be.
enum class Place { Inside, Result, Referred };

}  // namespace

// A parser by recursive descent; it goes no deeper than kTypeDepthMax. The first problem counts.
class SignatureParser {
 public:
  explicit SignatureParser(std::string_view text)
      : given_(text), made_(std::make_shared<Signature>()) {}

  Result<std::shared_ptr<const Signature>> signature() {
    if (check_size()) {
      expect("(", "a signature begins with (");
      read_list(")", made_->parameters_, kAny);
      expect("->", "-> and the type of the result follow");
      made_->result_ = read(Place::Result);
    }
    return finish();
  }
  Result<std::shared_ptr<const Signature>> type() {
    if (check_size()) made_->result_ = read(Place::Referred);
    return finish();
  }

 private:
  bool check_size() {
    if (given_.size() > kSignatureBytesMax) fail_at(0, "it is longer than 64 KiB");
    return !problem_;
  }

  Result<std::shared_ptr<const Signature>> finish() {
    skip_spaces();
    if (!problem_ && next_ < given_.size()) fail_at(next_, "nothing may follow here");
    if (problem_) return fail(ErrorKind::Invalid, *problem_);
    made_->hash_ = rpc::hash_of_signature(made_->text_);
    return std::shared_ptr<const Signature>(std::move(made_));
  }

  void fail_at(std::size_t position, std::string_view why) {
    if (problem_) return;
    // A text that goes on for pages helps nobody.
    constexpr std::size_t kShown = 60;
    const std::size_t from = position > kShown ? position - kShown : 0;
    problem_ = fmt::format("no signature: {}, at character {} of {}\"{}\"{}", why, position + 1,
                           from > 0 ? "…" : "", printable(given_.substr(from, 2 * kShown)),
                           from + 2 * kShown < given_.size() ? "…" : "");
    next_ = given_.size();
  }
  static std::string printable(std::string_view text) {
    std::string shown(text);
    std::replace_if(
        shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    return shown;
  }

  void skip_spaces() {
    while (next_ < given_.size() && given_[next_] == ' ') ++next_;
  }
  // Goes past `token` and takes it over, if it is next.
  bool accept(std::string_view token) {
    skip_spaces();
    if (problem_ || given_.substr(next_, token.size()) != token) return false;
    next_ += token.size();
    made_->text_ += token;
    return true;
  }
  void expect(std::string_view token, std::string_view why) {
    if (!accept(token)) fail_at(next_, why);
  }
  template <typename Predicate>
  std::string_view take_while(Predicate predicate) {
    const std::size_t start = next_;
    while (next_ < given_.size() && predicate(given_[next_])) ++next_;
    return given_.substr(start, next_ - start);
  }

  // A number without leading zeros, as the programs write it.
  std::size_t read_number(std::size_t most, std::string_view why) {
    skip_spaces();
    const std::size_t start = next_;
    const std::string_view digits = take_while([](char c) { return c >= '0' && c <= '9'; });
    std::size_t value = 0;
    for (const char digit : digits) {
      value = value * 10 + static_cast<std::size_t>(digit - '0');
      if (value > most) break;
    }
    const bool is_odd = digits.empty() || (digits.size() > 1 && digits.front() == '0');
    if (is_odd || value > most) {
      fail_at(start, why);
      return 0;
    }
    made_->text_ += digits;
    return value;
  }

  void read_list(std::string_view end, std::vector<std::unique_ptr<Type>>& parts, std::size_t most,
                 Place place = Place::Inside) {
    if (accept(end)) return;
    do {
      const std::size_t start = next_;
      if (most != kAny && parts.size() == most) return fail_at(start, "there are too many parts");
      parts.push_back(read(place));
    } while (accept(","));
    expect(end, fmt::format("{} or a comma is expected", end));
  }

  std::unique_ptr<Type> read(Place place) {
    auto type = std::make_unique<Type>();
    skip_spaces();
    type->begin = made_->text_.size();
    if (++depth_ > kTypeDepthMax) fail_at(next_, "types are nested deeper than 64");
    const std::size_t start = next_;
    if (!problem_) read_into(*type, place);
    if (!problem_) count_parts(*type, start);
    --depth_;
    type->size = made_->text_.size() - type->begin;
    return type;
  }

  void read_into(Type& type, Place place) {
    const std::size_t start = next_;
    if (accept("{")) return read_structure(type);
    if (accept("^")) return read_enclosing(type, start);
    const std::string_view word = take_while(is_letter);
    const auto is_it = [word](const auto& each) { return each.text == word; };
    const auto* const simple = std::find_if(std::begin(kSimple), std::end(kSimple), is_it);
    if (simple != std::end(kSimple)) {
      made_->text_ += word;
      type.kind = simple->kind;
      return check_place(type, place, start);
    }
    const auto* const found = std::find_if(std::begin(kTemplates), std::end(kTemplates), is_it);
    if (found != std::end(kTemplates)) {
      made_->text_ += word;
      type.kind = found->kind;
      return read_template(type, *found, start);
    }
    fail_at(start, word.empty() ? std::string("a type is expected")
                                : fmt::format("there is no type {}", word));
  }

  void check_place(const Type& type, Place place, std::size_t start) {
    if (type.kind == TypeKind::Object) {
      if (place == Place::Inside) return fail_at(start, "objects are never sent");
      skip_spaces();
      const std::string_view name = take_while(is_of_object_name);
      if (name.empty()) return fail_at(next_, "the name of the object's type is expected");
      made_->text_ += ' ';
      made_->text_ += name;
    }
    if (type.kind == TypeKind::Void && place == Place::Inside) {
      fail_at(start, "void is only the type of a result");
    }
    if (type.kind == TypeKind::Python && place != Place::Referred) {
      fail_at(start, "values of Python are only referred to: rref<python>");
    }
  }

  void read_structure(Type& type) {
    type.kind = TypeKind::Structure;
    type.count = made_->structures_.size();
    made_->structures_.push_back(&type);
    open_.push_back(&type);
    read_list("}", type.parts, kAny);
    open_.pop_back();
  }

  void read_enclosing(Type& type, std::size_t start) {
    type.kind = TypeKind::Enclosing;
    const std::size_t distance = read_number(open_.size(), "there are fewer structures around it");
    if (problem_) return;
    if (distance == 0) return fail_at(start, "^1 is the structure around it");
    type.enclosing = open_[open_.size() - distance];
  }

  void read_template(Type& type, const Template& kind, std::size_t start) {
    expect("<", "< is expected");
    if (kind.kind == TypeKind::Reference) {
      // The value is elsewhere: its type is one of its own.
      const auto outer = std::exchange(open_, {});
      read_list(">", type.parts, kind.most, Place::Referred);
      open_ = outer;
    } else {
      read_list(">", type.parts, kind.most);
    }
    if (!problem_ && type.parts.size() < kind.least) fail_at(next_, "there are too few parts");
    if (problem_) return;
    if (kind.kind == TypeKind::Vector && type.parts[0]->kind == TypeKind::Byte) {
      return fail_at(start, "a vec<byte> is spelt bytes");
    }
    if (kind.kind == TypeKind::Array) {
      expect("*", "* and the number of elements are expected");
      type.count = read_number(kArrayElementsMax, "the number of elements is expected, up to 2^28");
    }
  }

  // Parts may have no bytes at all, so what has come says nothing about how many there can be.
  void count_parts(Type& type, std::size_t start) {
    const TypeKind kind = type.kind;
    const bool is_array = kind == TypeKind::Array && !is_bulk(type.parts[0]->kind);
    if (!is_array && kind != TypeKind::Tuple && kind != TypeKind::Structure) return;
    std::size_t sum = 0;
    for (const auto& part : type.parts) sum += part->fixed_parts;
    // Neither can overflow: each part has been here before.
    type.fixed_parts = 1 + (is_array ? sum * type.count : sum);
    if (type.fixed_parts > kFixedPartsMax) fail_at(start, "it has more than 2^24 parts");
  }

  const std::string_view given_;
  std::size_t next_ = 0;
  std::size_t depth_ = 0;
  std::vector<const Type*> open_;
  std::shared_ptr<Signature> made_;
  std::optional<std::string> problem_;
};

Result<std::shared_ptr<const Signature>> Signature::parse(std::string_view text) {
  return SignatureParser(text).signature();
}

Result<std::shared_ptr<const Signature>> Signature::parse_type(std::string_view text) {
  return SignatureParser(text).type();
}

std::size_t size_of(TypeKind kind) {
  switch (kind) {
    case TypeKind::I16:
    case TypeKind::U16:
      return 2;
    case TypeKind::I32:
    case TypeKind::U32:
    case TypeKind::F32:
      return 4;
    case TypeKind::I64:
    case TypeKind::U64:
    case TypeKind::F64:
    case TypeKind::C64:
      return 8;
    case TypeKind::C128:
      return 16;
    default:
      return 1;
  }
}

bool has_references(const Type& type) {
  if (type.kind == TypeKind::Reference) return true;
  return std::any_of(type.parts.begin(), type.parts.end(),
                     [](const auto& part) { return has_references(*part); });
}

}  // namespace muster::python
