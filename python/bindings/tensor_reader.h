// Reads a framework's tensor without calling Python, through DLPack's exchange API for C. The
// exchange API is a table of functions, which a framework publishes as an attribute of its tensor
// type (dlpack.h, version 1.3; in PyTorch since 2.10).
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "farandole/device.h"
#include "farandole/dtype.h"

namespace farandole::python {

// Borrowed memory of this process, C-contiguous. `device` is where the user's tensor is. If that is
// not the CPU, the memory is a copy of the tensor on the host.
struct BufferView {
  DType dtype = DType::kUInt8;
  DeviceType device = DeviceType::kCpu;
  std::vector<std::int64_t> shape;
  std::uintptr_t input = 0;
  std::uintptr_t output = 0;
};

class TensorReader {
 public:
  // `exchange_api` is the attribute that holds the table. The table may refer to tables of older
  // versions. Raises TypeError if none of these tables has version 1.
  explicit TensorReader(const nanobind::capsule& exchange_api);

  // Returns a view whose input and output are the tensor's memory. Returns nothing if the tensor is
  // not C-contiguous, is not in host memory or has an unknown dtype, or if the framework cannot
  // describe the tensor. The tensor must be of the type that publishes the table.
  std::optional<BufferView> view_of(nanobind::handle tensor) const;

 private:
  using ReadTensor = int (*)(void* object, nanobind::dlpack::dltensor* description);
  ReadTensor read_tensor_;
};

void bind_tensor_reader(nanobind::module_& module);

}  // namespace farandole::python
