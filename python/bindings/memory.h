// Python arrays over memory that the engine has allocated, without a copy. They are writable and
// support DLPack and the buffer protocol. The memory stays valid until the last array or tensor
// that uses it is gone, even after shutdown.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "bound_engine.h"
#include "farandole/dtype.h"

namespace farandole::python {

using Array = nanobind::ndarray<nanobind::array_api>;

// Returns an array that owns the memory, together with all arrays and tensors that are created from
// the array.
Array make_array(std::shared_ptr<std::byte> memory, DType dtype,
                 const std::vector<std::size_t>& shape);

void bind_memory(nanobind::class_<BoundEngine>& engine);

}  // namespace farandole::python
