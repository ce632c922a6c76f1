// Memory of the shared heap as Python arrays: DLPack and the buffer protocol, writable, without a
// copy. The memory lives until the last array or tensor that uses it is gone, also after shutdown.
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

// The memory is owned by the array and by whatever is made from it.
Array array_over(std::shared_ptr<std::byte> memory, DType dtype,
                 const std::vector<std::size_t>& shape);

void bind_memory(nanobind::class_<BoundEngine>& engine);

}  // namespace farandole::python
