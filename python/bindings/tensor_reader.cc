#include "tensor_reader.h"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <span>

namespace nb = nanobind;

namespace farandole::python {
namespace {

// The members of DLPackExchangeAPI in dlpack.h that this file reads, and those before them.
struct ExchangeApi {
  std::uint32_t version_major;
  std::uint32_t version_minor;
  const ExchangeApi* older_version;  // a table for an older version of DLPack
  void* allocate;
  void* managed_tensor_of_object;
  void* object_of_managed_tensor;
  // Describes the memory of an object without owning it. Returns 0, or sets a Python exception.
  int (*tensor_of_object)(void* object, nb::dlpack::dltensor* description);
};
constexpr std::uint32_t kVersionMajor = 1;

std::optional<DType> dtype_of(nb::dlpack::dtype type) {
  for (const DTypeRow& row : kDTypes)
    if (type.code == static_cast<std::uint8_t>(row.dlpack_code) && type.bits == row.bytes * 8 &&
        type.lanes == 1)
      return row.dtype;
  return std::nullopt;
}

// Strides count elements; a null pointer means C-contiguous.
bool is_contiguous(std::span<const std::int64_t> shape, const std::int64_t* strides) {
  if (strides == nullptr || std::ranges::find(shape, 0) != shape.end()) return true;
  std::int64_t elements = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != elements) return false;
    elements *= shape[i];
  }
  return true;
}

}  // namespace

TensorReader::TensorReader(const nb::capsule& exchange_api) {
  const auto* api = static_cast<const ExchangeApi*>(exchange_api.data("dlpack_exchange_api"));
  while (api != nullptr && api->version_major != kVersionMajor) api = api->older_version;
  if (api == nullptr) throw nb::type_error("the version of DLPack's exchange API is not 1");
  read_tensor_ = api->tensor_of_object;
}

std::optional<BufferView> TensorReader::view_of(nb::handle tensor) const {
  nb::dlpack::dltensor description;
  if (read_tensor_(tensor.ptr(), &description) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  const std::span<const std::int64_t> shape(description.shape,
                                            static_cast<std::size_t>(description.ndim));
  const std::optional<DType> dtype = dtype_of(description.dtype);
  if (!dtype || description.device.device_type != nb::device::cpu::value ||
      !is_contiguous(shape, description.strides))
    return std::nullopt;
  const auto address = reinterpret_cast<std::uintptr_t>(description.data) + description.byte_offset;
  return BufferView{
      .dtype = *dtype, .shape = {shape.begin(), shape.end()}, .input = address, .output = address};
}

void bind_tensor_reader(nb::module_& module) {
  nb::class_<TensorReader>(module, "TensorReader")
      .def(nb::init<const nb::capsule&>())
      .def("view_of", &TensorReader::view_of);
}

}  // namespace farandole::python
