// Writes and reads the fields of a message in the same order. For each kind of message, one
// function visits all fields, for writing and for reading:
//   void fields(auto& visit, auto& message) { visit(message.rank), visit(message.name); }
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace farandole {

// A list begins with its length (u32). An optional value begins with a u8 that says whether a value
// follows.
struct FieldWriter {
  void operator()(std::uint8_t number) { bytes.put(number); }
  void operator()(std::uint32_t number) { bytes.put(number); }
  void operator()(bool flag) { bytes.put(static_cast<std::uint8_t>(flag ? 1 : 0)); }
  void operator()(const std::string& text) { bytes.put_text(text); }
  template <class Item>
  void operator()(const std::vector<Item>& items) {
    bytes.put(static_cast<std::uint32_t>(items.size()));
    for (const Item& item : items) (*this)(item);
  }
  template <class Value>
  void operator()(const std::optional<Value>& value) {
    (*this)(value.has_value());
    if (value) (*this)(*value);
  }

  ByteWriter bytes;
};

struct FieldReader {
  explicit FieldReader(std::span<const std::byte> message) : bytes(message) {}

  void operator()(std::uint8_t& number) { number = bytes.get<std::uint8_t>(); }
  void operator()(std::uint32_t& number) { number = bytes.get<std::uint32_t>(); }
  void operator()(bool& flag) { flag = bytes.get<std::uint8_t>() != 0; }
  void operator()(std::string& text) { text = bytes.get_text(); }
  template <class Item>
  void operator()(std::vector<Item>& items) {
    const auto count = bytes.get<std::uint32_t>();
    for (std::uint32_t i = 0; i < count && bytes.ok(); ++i) (*this)(items.emplace_back());
  }
  template <class Value>
  void operator()(std::optional<Value>& value) {
    bool has_value = false;
    (*this)(has_value);
    if (has_value) (*this)(value.emplace());
  }
  // Whether the message consisted of exactly the bytes of the fields that were read.
  bool is_complete() const { return bytes.ok() && bytes.at_end(); }

  ByteReader bytes;
};

}  // namespace farandole
