// Signature: everything about a submission that must be equal on all members of its group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "farandole/device.h"
#include "farandole/dtype.h"
#include "farandole/operation.h"

namespace farandole {

// Names, shapes and faults are bounded so that every signature fits into one control message.
inline constexpr std::size_t kNameBytesMax = 4096;
inline constexpr std::size_t kDimensionsMax = 64;
inline constexpr std::size_t kFaultBytesMax = 1024;

// Members match by name alone: the same name with another operation is a mismatch that gets
// refused, never a second tensor. Calls without a name get one from the engine before they come
// here.
struct Signature {
  std::string name;
  Operation operation = Operation::kBarrier;
  DType dtype = DType::kUInt8;
  DeviceType device = DeviceType::kCpu;  // kCpu where there is no tensor
  ReduceOp reduce_op = ReduceOp::kSum;   // kSum where it has no meaning
  std::int32_t root_rank = 0;            // 0 where it has no meaning
  double prescale = 1;                   // finite; 1 where it has no meaning
  double postscale = 1;
  // The dimensions that must be equal, by the operation's ShapeRule: all, all but the first, none.
  std::vector<std::int64_t> dimensions;
  // Why this call cannot run, in words; empty where it can. A call with a fault has a name and an
  // operation, no more; it is refused on all members.
  std::string fault = {};

  bool has_fault() const { return !fault.empty(); }

  friend bool operator==(const Signature& a, const Signature& b);
};

// How scales are compared: what differs in one bit may give another result.
bool same_bits(double a, double b);

// Stands for all of a signature, the same in all processes of a job, and different for different
// ones: two of a job's n signatures are alike with a chance of n² / 2^65.
std::uint64_t digest_of(const Signature& signature);

// Of the name alone.
std::uint64_t digest_of(std::string_view name);

// What makes this no signature (an empty or endless name, a negative dimension, an endless scale, a
// number that is no operation …); empty when all is well.
std::string problem_of(const Signature& signature);

// The bytes of a tensor; nothing for a shape that no tensor has: a dimension is negative, or all of
// it, empty dimensions left out, is 2^62 bytes or more.
std::optional<std::int64_t> byte_count(DType dtype, std::span<const std::int64_t> shape);

// A signature that is submitted again and again, with what has to be computed only once.
struct KnownSignature {
  explicit KnownSignature(Signature known);

  Signature signature;
  std::uint64_t digest;
  std::uint64_t name_digest;
  std::int64_t bytes;        // of its dimensions; 0 if it is out of bounds
  std::uint64_t fusion_key;  // equal where one transfer may carry both; 0: it takes no other
  std::string problem;       // problem_of(signature)
};

// How much of a name texts show.
inline constexpr std::size_t kNameShownBytesMax = 200;

// At most `bytes_max` bytes of a UTF-8 text, cut between characters, with "…" where it was cut.
std::string shortened(const std::string& text, std::size_t bytes_max);

}  // namespace farandole
