// Signature: the properties of a submission that must be equal on all members of its group.
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

// Names, shapes and error texts are bounded, so that every signature fits into one control message.
inline constexpr std::size_t kNameBytesMax = 4096;
inline constexpr std::size_t kDimensionsMax = 64;
inline constexpr std::size_t kCallErrorBytesMax = 1024;

// Members match calls by name alone. If two members use one name for different operations, the call
// is rejected on all members. If a call has no name, the engine chooses one before it makes the
// signature.
struct Signature {
  std::string name;
  Operation operation = Operation::kBarrier;
  DType dtype = DType::kUInt8;
  DeviceType device = DeviceType::kCpu;  // kCpu if there is no tensor
  ReduceOp reduce_op = ReduceOp::kSum;   // kSum if the operation does not reduce
  std::int32_t root_rank = 0;            // 0 if the operation has no root
  double prescale = 1;                   // finite; 1 if the operation does not reduce
  double postscale = 1;
  // The dimensions that must be equal: all, all but the first, or none. The operation's ShapeRule
  // decides which.
  std::vector<std::int64_t> dimensions;
  // Why this call cannot run; empty if it can. A call with such a text is rejected on all members,
  // and its signature has only the name, the operation and this text.
  std::string call_error = {};

  bool has_call_error() const { return !call_error.empty(); }

  friend bool operator==(const Signature& a, const Signature& b);
};

// Compares scales bit by bit, because any difference may change the result.
bool have_same_bits(double a, double b);

// Digest of the whole signature, the same in all processes of a job. In a job with n signatures,
// the probability that any two of them have the same digest is n² / 2^65.
std::uint64_t digest_of(const Signature& signature);

// Digest of the name alone.
std::uint64_t digest_of(std::string_view name);

// Says what is malformed (an empty or too long name, a negative dimension, an infinite scale, a
// number that stands for no operation …). Empty if the signature is well-formed.
std::string problem_of(const Signature& signature);

// Bytes of a tensor. Empty if no tensor can have this shape: if a dimension is negative, or if the
// product of the non-zero dimensions comes to 2^62 bytes or more.
std::optional<std::int64_t> byte_count(DType dtype, std::span<const std::int64_t> shape);

// A signature with values that are computed from it only once, because programs submit the same
// signature again and again.
struct InternedSignature {
  explicit InternedSignature(Signature interned);

  Signature signature;
  std::uint64_t digest;
  std::uint64_t name_digest;
  // size of a tensor of this dtype and these dimensions; 0 if no tensor can have them
  std::int64_t bytes;
  // calls with equal keys may share one transfer; 0: this call never shares a transfer
  std::uint64_t fusion_key;
  std::string problem;  // problem_of(signature)
};

// Error texts show at most this many bytes of a name.
inline constexpr std::size_t kNameShownBytesMax = 200;

// Returns at most `bytes_max` bytes of a UTF-8 text, cut between characters. "…" marks the cut.
std::string shortened(const std::string& text, std::size_t bytes_max);

}  // namespace farandole
