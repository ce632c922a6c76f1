// Tensors come as addresses: reading `t.data_ptr()` costs a tenth of what an array argument costs.
// Who keeps the memory alive: farandole/handle.py.
#include "collectives.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "farandole/operation.h"
#include "memory.h"

namespace nb = nanobind;

namespace farandole::python {
namespace {

// Borrowed tensor memory, C-contiguous.
struct BufferView {
  DType dtype = DType::kUInt8;
  std::vector<std::int64_t> shape;
  std::uintptr_t input = 0;
  std::uintptr_t output = 0;
};

Submission submission_of(Operation operation, std::string name, GroupId group,
                         const BufferView& buffer) {
  Submission submission;
  submission.operation = operation;
  submission.name = std::move(name);
  submission.group = group;
  submission.dtype = buffer.dtype;
  submission.shape = buffer.shape;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): addresses are how Python hands over memory.
  submission.input = reinterpret_cast<const void*>(buffer.input);
  submission.output = reinterpret_cast<void*>(buffer.output);  // NOLINT(performance-no-int-to-ptr)
  return submission;
}

Handle submit(BoundEngine& self, const Submission& submission) {
  const std::shared_ptr<Engine> engine = self.running();
  const Result<Handle> handle = [&] {
    const nb::gil_scoped_release unlocked;  // the step may run at once
    return engine->submit(submission);
  }();
  raise_if_failed(handle.status());
  return *handle;
}

Handle allreduce(BoundEngine& self, std::string name, GroupId group, const BufferView& buffer,
                 int reduce_op) {
  Submission submission = submission_of(Operation::kAllreduce, std::move(name), group, buffer);
  submission.reduce_op = static_cast<ReduceOp>(reduce_op);
  return submit(self, submission);
}

Handle broadcast(BoundEngine& self, std::string name, GroupId group, const BufferView& buffer,
                 int root_rank) {
  Submission submission = submission_of(Operation::kBroadcast, std::move(name), group, buffer);
  submission.root_rank = root_rank;
  return submit(self, submission);
}

Handle allgather(BoundEngine& self, std::string name, GroupId group, const BufferView& buffer) {
  return submit(self, submission_of(Operation::kAllgather, std::move(name), group, buffer));
}

Handle barrier(BoundEngine& self, std::string name, GroupId group) {
  return submit(self, submission_of(Operation::kBarrier, std::move(name), group, {}));
}

void take(BoundEngine& self, Handle handle) {
  raise_if_failed(self.running()->take(handle).status);
}

// The gathered rows, and how many each member gave.
nb::tuple take_gathered(BoundEngine& self, Handle handle, const BufferView& buffer) {
  Outcome outcome = self.running()->take(handle);
  raise_if_failed(outcome.status);
  std::vector<std::size_t> shape(buffer.shape.begin(), buffer.shape.end());
  const auto& rows = outcome.first_dimensions;
  shape.at(0) =
      static_cast<std::size_t>(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}));
  return nb::make_tuple(array_over(std::move(outcome.gathered), buffer.dtype, shape), rows);
}

}  // namespace

void bind_collectives(nb::module_& module, nb::class_<BoundEngine>& engine) {
  nb::class_<BufferView>(module, "BufferView")
      .def(
          "__init__",
          [](BufferView* self, int dtype, std::vector<std::int64_t> shape, std::uintptr_t input,
             std::uintptr_t output) {
            new (self) BufferView{static_cast<DType>(dtype), std::move(shape), input, output};
          },
          nb::arg("dtype"), nb::arg("shape"), nb::arg("input"), nb::arg("output"));
  engine.def("allreduce", &allreduce)
      .def("broadcast", &broadcast)
      .def("allgather", &allgather)
      .def("barrier", &barrier)
      .def("poll", &BoundEngine::poll)
      .def("wait", &BoundEngine::wait)
      .def("take", &take)
      .def("take_gathered", &take_gathered);
}

}  // namespace farandole::python
