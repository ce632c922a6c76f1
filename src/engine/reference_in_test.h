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
void with_type(DType dtype, Visit visit) {
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

inline double number_in(Float16 value) { return to_float(value); }
inline double number_in(BFloat16 value) { return to_float(value); }
template <class T>
double number_in(T value) {
  return static_cast<double>(value);
}
inline void put_number(double number, Float16& to) { to = to_float16(static_cast<float>(number)); }
inline void put_number(double number, BFloat16& to) {
  to = to_bfloat16(static_cast<float>(number));
}
template <class T>
void put_number(double number, T& to) {
  to = static_cast<T>(number);
}

inline std::vector<std::byte> encoded(DType dtype, const Values& values) {
  std::vector<std::byte> bytes(values.size() * row_of(dtype).bytes);
  with_type(dtype, [&]<class T>(T element) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      put_number(values[i], element);
      std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
    }
  });
  return bytes;
}

inline Values decoded(DType dtype, const std::byte* bytes, std::size_t count) {
  Values values(count);
  with_type(dtype, [&]<class T>(T element) {
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(&element, bytes + i * sizeof(T), sizeof(T));
      values[i] = number_in(element);
    }
  });
  return values;
}

inline bool is_integer(DType dtype) {
  const auto code = row_of(dtype).dlpack_code;
  return code == DLPackCode::kInt || code == DLPackCode::kUInt;
}

// Values so small that a product over eight ranks fits into float16 and int8; 0 and 1 for bool.
inline Values small_numbers(DType dtype, std::int64_t count, int rank, int seed) {
  Values values(static_cast<std::size_t>(count));
  const bool is_signed = dtype != DType::kBool && row_of(dtype).dlpack_code != DLPackCode::kUInt;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto mixed =
        static_cast<int>((i * 7 + static_cast<std::size_t>(rank * 5 + seed * 3)) % 11);
    values[i] = mixed % 2;
    if (dtype != DType::kBool && mixed == 10 && rank < 3) values[i] = 3;
    if (is_signed && mixed == 9) values[i] = -1;
  }
  return values;
}

inline double combined(ReduceOp op, double a, double b) {
  if (op == ReduceOp::kMin) return std::min(a, b);
  if (op == ReduceOp::kMax) return std::max(a, b);
  return op == ReduceOp::kProduct ? a * b : a + b;
}

// Reduces the values of all members, element by element, without rounding to the dtype.
inline Values reduced(DType dtype, ReduceOp op, const std::vector<Values>& inputs) {
  Values result = inputs.front();
  for (std::size_t member = 1; member < inputs.size(); ++member)
    for (std::size_t i = 0; i < result.size(); ++i)
      result[i] = combined(op, result[i], inputs[member][i]);
  for (double& value : result) {
    if (dtype == DType::kBool) value = value != 0 ? 1 : 0;
    if (op == ReduceOp::kAverage) value /= static_cast<double>(inputs.size());
    if (is_integer(dtype)) value = std::trunc(value);
  }
  return result;
}

// Rounds the values as a tensor of `dtype` does.
inline Values rounded_to(DType dtype, const Values& values) {
  return decoded(dtype, encoded(dtype, values).data(), values.size());
}

}  // namespace farandole
