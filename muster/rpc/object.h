// Object: a value that stays on the worker that made it, whatever its type.
//
// Results of functions that are called with `remote` are kept so. They may be of any type that
// could be sent, and of types that never are (a cache, a model, a game), which say so:
//
//   template <>
//   inline constexpr bool muster::rpc::kIsObject<Cache> = true;
#pragma once

#include "muster/rpc/value.h"

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace muster::rpc {

// What may be referred to.
template <typename T>
concept Referable = std::is_void_v<T> || Encodable<T> || kIsObject<T>;

// The type as workers compare it: by its parts where it can be sent, by its name otherwise. Types
// that are sent alike (a std::map and a std::unordered_map) have the same.
template <typename T>
const std::string& type_text() {
  static const std::string kText = [] {
    Signature signature;
    signature.append<T>();
    return shorten_signature(signature.take());
  }();
  return kText;
}

class Object {
 public:
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;

  virtual const std::string& type() const = 0;
  // Fails the writer if it is of a type that is never sent.
  virtual void write(Writer& writer) const = 0;
  // Whether writing it may take long, or wait: it is then done where callbacks run.
  virtual bool is_slow_to_write() const { return false; }
};

template <typename T>
class TypedObject final : public Object {
  static_assert(owns_memory<T>());

 public:
  explicit TypedObject(T value) : value_(std::move(value)) {}

  const std::string& type() const override { return type_text<T>(); }
  void write(Writer& writer) const override {
    if constexpr (Encodable<T>) {
      writer.write(value_);
    } else {
      writer.fail(
          "the value is of a type that is never sent; call functions with a reference to it");
    }
  }
  T& value() { return value_; }
  // Nothing if the object is of another type, though it may have the same text.
  static T* value_of(Object& object) {
    auto* const typed = dynamic_cast<TypedObject*>(&object);
    return typed == nullptr ? nullptr : &typed->value();
  }

 private:
  T value_;
};

template <>
class TypedObject<void> final : public Object {
 public:
  const std::string& type() const override { return type_text<void>(); }
  void write(Writer&) const override {}
};

}  // namespace muster::rpc
