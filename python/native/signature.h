// The types of a procedure, read from its signature: "(i64,vec<f64>)->f64".
//
// C++ programs have such a text from their types (muster::rpc::Signature); Python programs write
// it down. What is read here is what muster/rpc/value_codecs.h and muster/rref/rref.h can spell:
//
//   i8 … u64, f32, f64, c64, c128, bool, byte, none, str, bytes, tensor
//   vec<T>  arr<T>*N  set<T>  map<K,V>  opt<T>  var<T,…>  tup<T,…>
//   {T,…}              a structure, by its fields; ^1 is the one around it, ^2 the one around that
//   rref<T>            a reference; T may also be void, python, or "object name"
//   void, object name  only as a result
//
// Everything here is a value; nothing of Python is needed.
#pragma once

#include "muster/base/error.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace muster::python {

inline constexpr std::size_t kSignatureBytesMax = 65536;
inline constexpr std::size_t kTypeDepthMax = 64;
inline constexpr std::size_t kArrayElementsMax = std::size_t{1} << 28U;
// What one value of a fixed size may consist of; an array of numbers is one part.
inline constexpr std::size_t kFixedPartsMax = std::size_t{1} << 24U;

enum class TypeKind : std::uint8_t {
  I8,
  I16,
  I32,
  I64,
  U8,
  U16,
  U32,
  U64,
  F32,
  F64,
  C64,
  C128,
  Byte,
  Bool,
  None,
  Str,
  Bytes,
  Tensor,
  Vector,
  Array,
  Set,
  Map,
  Optional,
  Variant,
  Tuple,
  Structure,
  Enclosing,  // "^1"
  Reference,
  Void,
  Object,
  Python,  // a value that Python has, of whatever class
};

struct Type {
  TypeKind kind = TypeKind::Void;
  std::size_t begin = 0;  // of its text
  std::size_t size = 0;
  // Array: how many. Structure: the how manieth it is in the signature, from 0.
  std::size_t count = 0;
  std::size_t fixed_parts = 1;  // of a value, however little is in it
  std::vector<std::unique_ptr<Type>> parts{};
  const Type* enclosing = nullptr;  // Enclosing: the structure that is meant
};

// Whether a row of them is copied in one piece, as numbers are.
inline bool is_bulk(TypeKind kind) { return kind <= TypeKind::Byte; }
// The bytes of one; of those that are bulk.
std::size_t size_of(TypeKind kind);

class Signature {
 public:
  // Invalid, and the text says where, for what is no signature. Spaces between the parts are left
  // out.
  static Result<std::shared_ptr<const Signature>> parse(std::string_view text);
  // Of one type, as references name that of their value; it is the result then.
  static Result<std::shared_ptr<const Signature>> parse_type(std::string_view text);

  const std::string& text() const { return text_; }
  std::uint64_t hash() const { return hash_; }
  const std::vector<std::unique_ptr<Type>>& parameters() const { return parameters_; }
  const Type& result() const { return *result_; }
  std::size_t structure_count() const { return structures_.size(); }
  const Type& structure(std::size_t index) const { return *structures_[index]; }

  std::string_view text_of(const Type& type) const {
    return std::string_view(text_).substr(type.begin, type.size);
  }

 private:
  friend class SignatureParser;

  std::string text_;
  std::uint64_t hash_ = 0;
  std::vector<std::unique_ptr<Type>> parameters_;
  std::unique_ptr<Type> result_;
  std::vector<const Type*> structures_;
};

// Whether a value of that type may have references in it.
bool has_references(const Type& type);

}  // namespace muster::python
