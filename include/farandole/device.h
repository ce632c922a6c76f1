// The kinds of device on which a program's tensors lie, one row each.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace farandole {

// Codes of DLPack's DLDeviceType (dlpack.h, version 1.0).
enum class DeviceType : std::uint8_t {
  kCpu = 1,
  kCuda = 2,
  kMetal = 8,
  kRocm = 10,
  kExtension = 12,
  kOneApi = 14,
};

struct DeviceRow {
  DeviceType type;
  std::string_view name;  // as PyTorch says it, which calls both kCuda and kRocm "cuda"
};

inline constexpr std::array<DeviceRow, 6> kDevices = {{
    {DeviceType::kCpu, "cpu"},
    {DeviceType::kCuda, "cuda"},
    {DeviceType::kMetal, "mps"},
    {DeviceType::kRocm, "rocm"},
    {DeviceType::kExtension, "privateuseone"},  // of a plug-in, which may have renamed it
    {DeviceType::kOneApi, "xpu"},
}};

// Null for a number that is in no row: bindings and messages make these from numbers.
constexpr const DeviceRow* find_row(DeviceType type) {
  for (const auto& row : kDevices)
    if (row.type == type) return &row;
  return nullptr;
}

}  // namespace farandole
