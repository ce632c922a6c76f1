// The element types, one row each. Code that depends on an element type reads the row of that type.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace farandole {

enum class DType : std::uint8_t {
  kBool,
  kInt8,
  kUInt8,
  kInt16,
  kUInt16,
  kInt32,
  kInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
};

// Codes of DLPack's DLDataTypeCode (dlpack.h, version 1.0).
enum class DLPackCode : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBFloat = 4, kBool = 6 };

struct DTypeRow {
  DType dtype;
  std::string_view name;  // NumPy's and PyTorch's name
  std::size_t bytes;
  DLPackCode dlpack_code;
};

// Indexed by DType; the order is part of the protocol between ranks of one job.
inline constexpr std::array<DTypeRow, 11> kDTypes = {{
    {DType::kBool, "bool", 1, DLPackCode::kBool},
    {DType::kInt8, "int8", 1, DLPackCode::kInt},
    {DType::kUInt8, "uint8", 1, DLPackCode::kUInt},
    {DType::kInt16, "int16", 2, DLPackCode::kInt},
    {DType::kUInt16, "uint16", 2, DLPackCode::kUInt},
    {DType::kInt32, "int32", 4, DLPackCode::kInt},
    {DType::kInt64, "int64", 8, DLPackCode::kInt},
    {DType::kFloat16, "float16", 2, DLPackCode::kFloat},
    {DType::kBFloat16, "bfloat16", 2, DLPackCode::kBFloat},
    {DType::kFloat32, "float32", 4, DLPackCode::kFloat},
    {DType::kFloat64, "float64", 8, DLPackCode::kFloat},
}};

constexpr const DTypeRow& row_of(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }

}  // namespace farandole
