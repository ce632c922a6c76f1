#include "memory.h"

#include <cstdint>
#include <utility>

#include "errors.h"

namespace nb = nanobind;

namespace farandole::python {

Array make_array(std::shared_ptr<std::byte> memory, DType dtype,
                 const std::vector<std::size_t>& shape) {
  const DTypeRow& row = row_of(dtype);
  const nb::dlpack::dtype type{static_cast<std::uint8_t>(row.dlpack_code),
                               static_cast<std::uint8_t>(row.bytes * 8), 1};
  void* const data = memory.get();
  auto owner = std::make_unique<std::shared_ptr<std::byte>>(std::move(memory));
  const nb::capsule capsule(owner.get(), [](void* pointer) noexcept {
    delete static_cast<std::shared_ptr<std::byte>*>(pointer);
  });
  static_cast<void>(owner.release());
  return {data, shape.size(), shape.data(), capsule, nullptr, type, nb::device::cpu::value};
}

void bind_memory(nb::class_<BoundEngine>& engine) {
  engine.def(
      "allocate",
      [](BoundEngine& self, std::size_t bytes) {
        Result<std::shared_ptr<std::byte>> memory = self.engine_for_new_calls()->allocate(bytes);
        raise_if_failed(memory.status());
        return make_array(*std::move(memory), DType::kUInt8, {bytes});
      },
      nb::arg("bytes"));
  engine.def("is_shared", [](BoundEngine& self, std::uintptr_t address, std::size_t bytes) {
    return self.engine_for_new_calls()->is_shared(reinterpret_cast<const void*>(address), bytes);
  });
}

}  // namespace farandole::python
