// Reference results for collectives, computed in doubles. All test values are small whole numbers,
// so every dtype represents them and their sums exactly.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "device/cpu/half.h"
#include "farandole/engine.h"

namespace farandole {

using Values = std::vector<double>;

template <class Visit>
void call_with_type(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
      return visit(std::uint8_t{});
    case DType::kInt8:
      return visit(std::int8_t{});
    case DType::kInt16:
      return visit(std::int16_t{});
    case DType::kUInt16:
      return visit(std::uint16_t{});
    case DType::kInt32:
      return visit(std::int32_t{});
    case DType::kInt64:
      return visit(std::int64_t{});
    case DType::kFloat16:
      return visit(Float16{});
    case DType::kBFloat16:
      return visit(BFloat16{});
    case DType::kFloat32:
      return visit(float{});
    case DType::kFloat64:
      return visit(double{});
  }
  CHECK(false, "every dtype has a type");
}

inline double to_number(Float16 value) { return to_float(value); }
inline double to_number(BFloat16 value) { return to_float(value); }
template <class T>
double to_number(T value) {
  return static_cast<double>(value);
}
inline void store_number(double number, Float16& target) {
  target = to_float16(static_cast<float>(number));
}
inline void store_number(double number, BFloat16& target) {
  target = to_bfloat16(static_cast<float>(number));
}
template <class T>
void store_number(double number, T& target) {
  target = static_cast<T>(number);
}

inline std::vector<std::byte> encode_values(DType dtype, const Values& values) {
  std::vector<std::byte> bytes(values.size() * row_of(dtype).bytes);
  call_with_type(dtype, [&]<class T>(T element) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      store_number(values[i], element);
      std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
    }
  });
  return bytes;
}

inline Values decode_values(DType dtype, const std::byte* bytes, std::size_t count) {
  Values values(count);
  call_with_type(dtype, [&]<class T>(T element) {
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(&element, bytes + i * sizeof(T), sizeof(T));
      values[i] = to_number(element);
    }
  });
  return values;
}

inline bool is_integer(DType dtype) {
  const auto code = row_of(dtype).dlpack_code;
  return code == DLPackCode::kInt || code == DLPackCode::kUInt;
}

// Returns values whose product over eight ranks fits into float16 and int8. Bools are 0 or 1.
inline Values small_numbers(DType dtype, std::int64_t count, int rank, int seed) {
  Values values(static_cast<std::size_t>(count));
  const bool is_signed = dtype != DType::kBool && row_of(dtype).dlpack_code != DLPackCode::kUInt;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto mixed_number =
        static_cast<int>((i * 7 + static_cast<std::size_t>(rank * 5 + seed * 3)) % 11);
    values[i] = mixed_number % 2;
    if (dtype != DType::kBool && mixed_number == 10 && rank < 3) values[i] = 3;
    if (is_signed && mixed_number == 9) values[i] = -1;
  }
  return values;
}

inline double combine(ReduceOp op, double a, double b) {
  if (op == ReduceOp::kMin) return std::min(a, b);
  if (op == ReduceOp::kMax) return std::max(a, b);
  return op == ReduceOp::kProduct ? a * b : a + b;
}

// Reduces the values of all members, element by element, without rounding to the dtype.
inline Values reduce_values(DType dtype, ReduceOp op, const std::vector<Values>& inputs) {
  Values result = inputs.front();
  for (std::size_t member = 1; member < inputs.size(); ++member)
    for (std::size_t i = 0; i < result.size(); ++i)
      result[i] = combine(op, result[i], inputs[member][i]);
  for (double& value : result) {
    if (dtype == DType::kBool) value = value != 0 ? 1 : 0;
    if (op == ReduceOp::kAverage) value /= static_cast<double>(inputs.size());
    if (is_integer(dtype)) value = std::trunc(value);
  }
  return result;
}

// Rounds the values like a tensor of `dtype`.
inline Values round_to_dtype(DType dtype, const Values& values) {
  return decode_values(dtype, encode_values(dtype, values).data(), values.size());
}

}  // namespace farandole
