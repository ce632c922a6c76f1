// The kinds of devices on which the user's tensors may be, one row each.
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
  std::string_view name;  // PyTorch's name, except that PyTorch calls kRocm "cuda", too
};

inline constexpr std::array<DeviceRow, 6> kDevices = {{
    {DeviceType::kCpu, "cpu"},
    {DeviceType::kCuda, "cuda"},
    {DeviceType::kMetal, "mps"},
    {DeviceType::kRocm, "rocm"},
    // A device that an extension of PyTorch adds. The extension may give the device another name.
    {DeviceType::kExtension, "privateuseone"},
    {DeviceType::kOneApi, "xpu"},
}};

// Returns null if no row has this number. Bindings and messages pass numbers that may be invalid.
constexpr const DeviceRow* find_row(DeviceType type) {
  for (const auto& row : kDevices)
    if (row.type == type) return &row;
  return nullptr;
}

}  // namespace farandole
