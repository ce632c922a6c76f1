// Digest: mixes numbers and texts into 64 bits, with the same result in all processes of a job.
// Every input bit affects every output bit, and the order of the inputs counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace farandole {

class Digest {
 public:
  void add(std::uint64_t value) { state_ = mixed((state_ ^ value) + kStride); }

  void add(std::string_view text) {
    add(text.size());
    for (; text.size() >= sizeof(std::uint64_t); text.remove_prefix(sizeof(std::uint64_t)))
      add(packed(text.substr(0, sizeof(std::uint64_t))));
    if (!text.empty()) add(packed(text));
  }

  // The result is never 0, because 0 stands for "no digest".
  std::uint64_t value() const { return state_ == 0 ? 1 : state_; }

 private:
  static constexpr std::uint64_t kStride = 0x9e3779b97f4a7c15;

  // The finalizer of Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
  static std::uint64_t mixed(std::uint64_t bits) {
    bits = (bits ^ (bits >> 30U)) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ (bits >> 27U)) * 0x94d049bb133111eb;
    return bits ^ (bits >> 31U);
  }

  // Packs at most eight bytes, little-endian like everything that members compare.
  static std::uint64_t packed(std::string_view bytes) {
    std::uint64_t number = 0;
    std::memcpy(&number, bytes.data(), bytes.size());
    return number;
  }

  std::uint64_t state_ = 0;
};

}  // namespace farandole
