// Python passes tensors as addresses, because reading `t.data_ptr()` takes only a tenth of the time
// that nanobind needs for an array argument. farandole/handle.py keeps the memory alive. This file
// converts text and tuples itself, because nanobind's casters for standard-library types end the
// process if an allocation fails.
#include "collectives.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "farandole/operation.h"
#include "memory.h"
#include "tensor_reader.h"

namespace nb = nanobind;

namespace farandole::python {
namespace {

// A call and its handle, which is 0 before the call is submitted. submit() and collect() store the
// handle and the status in this object instead of returning them: if a signal handler raised an
// exception, a returned value would be lost.
struct Call {
  Submission submission;
  Handle handle = 0;
  std::optional<Status> collected_status = std::nullopt;  // set by collect()
};

std::string text_of(const nb::str& text) {
  Py_ssize_t size = 0;
  const char* const bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes == nullptr) throw nb::python_error();
  return {bytes, static_cast<std::size_t>(size)};
}

std::vector<std::int64_t> integers_of(const nb::tuple& tuple) {
  std::vector<std::int64_t> integers;
  integers.reserve(tuple.size());
  for (const nb::handle item : tuple) integers.push_back(nb::cast<std::int64_t>(item));
  return integers;
}

Submission submission_of(Operation operation, const nb::str& name, GroupId group) {
  Submission submission;
  submission.operation = operation;
  submission.name = text_of(name);
  submission.group = group;
  return submission;
}

Submission submission_of(Operation operation, const nb::str& name, GroupId group,
                         const BufferView& buffer) {
  Submission submission = submission_of(operation, name, group);
  submission.dtype = buffer.dtype;
  submission.device = buffer.device;
  submission.shape = buffer.shape;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): Python passes memory as addresses.
  submission.input = reinterpret_cast<const void*>(buffer.input);
  submission.output = reinterpret_cast<void*>(buffer.output);  // NOLINT(performance-no-int-to-ptr)
  return submission;
}

constexpr bool has_at_most_one_kind_of_argument(const OperationRow& row) {
  return static_cast<int>(row.reduces) + static_cast<int>(row.rooted) +
             static_cast<int>(row.has_splits) <=
         1;
}
static_assert(std::ranges::all_of(kOperations, has_at_most_one_kind_of_argument),
              "bind_operation() passes only one kind of argument");

// Adds the function that makes the calls of an operation. The row says which arguments the
// function has.
void bind_operation(nb::module_& module, const OperationRow& row) {
  const std::string function(row.name);
  if (row.shape_rule == ShapeRule::kNone)
    module.def(function.c_str(), [&row](const nb::str& name, GroupId group) {
      return Call{submission_of(row.operation, name, group)};
    });
  else if (row.reduces)
    module.def(function.c_str(),
               [&row](const nb::str& name, GroupId group, const BufferView& buffer, int reduce_op,
                      double prescale, double postscale) {
                 Submission submission = submission_of(row.operation, name, group, buffer);
                 submission.reduce_op = static_cast<ReduceOp>(reduce_op);
                 submission.prescale = prescale;
                 submission.postscale = postscale;
                 return Call{std::move(submission)};
               });
  else if (row.rooted)
    module.def(function.c_str(),
               [&row](const nb::str& name, GroupId group, const BufferView& buffer, int root_rank) {
                 Submission submission = submission_of(row.operation, name, group, buffer);
                 submission.root_rank = root_rank;
                 return Call{std::move(submission)};
               });
  else if (row.has_splits)
    module.def(function.c_str(), [&row](const nb::str& name, GroupId group,
                                        const BufferView& buffer, const nb::tuple& splits) {
      Submission submission = submission_of(row.operation, name, group, buffer);
      submission.splits = integers_of(splits);
      return Call{std::move(submission)};
    });
  else
    module.def(function.c_str(),
               [&row](const nb::str& name, GroupId group, const BufferView& buffer) {
                 return Call{submission_of(row.operation, name, group, buffer)};
               });
}

// Adds the function that returns the call of a send or of a receive. `message` is the other rank,
// the tag and the channel. If the frontend found the call invalid, `call_error` says why. Then the
// matching call of the other rank fails, too, unless that call is a send that is done before the
// error arrives.
void bind_message(nb::module_& module, const OperationRow& row) {
  module.def(std::string(row.name).c_str(),
             [&row](const nb::str& name, GroupId group, const BufferView& buffer,
                    const nb::tuple& message, const nb::str& call_error) {
               Submission submission = submission_of(row.operation, name, group, buffer);
               submission.peer = nb::cast<int>(message[0]);
               submission.tag = nb::cast<int>(message[1]);
               submission.channel = text_of(nb::str(message[2]));
               submission.call_error = text_of(call_error);
               return Call{std::move(submission)};
             });
}

// Returns a call that the frontend has found invalid. This call fails on all ranks, even if the
// calls of the other ranks with this name are valid.
Call invalid_call(const nb::str& name, GroupId group, const nb::str& call_error) {
  Submission submission = submission_of(Operation::kBarrier, name, group);
  submission.call_error = text_of(call_error);
  return {std::move(submission)};
}

// How long submit() waits until the call that it has started is done.
std::chrono::milliseconds wait_limit_of(bool caller_waits) {
  return caller_waits ? kSignalCheckInterval : std::chrono::milliseconds{};
}

void submit(BoundEngine& self, Call& call, bool caller_waits) {
  // Releases the GIL, because the call may run to its end inside submit().
  const Result<Handle> handle = self.run_in_engine(
      [&](Engine& engine) { return engine.submit(call.submission, wait_limit_of(caller_waits)); });
  raise_if_failed(handle.status());
  call.handle = *handle;
}

// Runs a call on this thread until it is done, and releases it. If run() raises and call.handle is
// not 0, the call is still in flight.
void run(BoundEngine& self, Call& call) {
  submit(self, call, true);
  self.wait(call.handle);
  const Status status = self.engine_for_calls_in_flight()->take(call.handle).status;
  call.handle = 0;
  raise_if_failed(status);
}

void submit_batch(BoundEngine& self, const nb::list& list, bool caller_waits) {
  std::vector<Call*> calls;
  std::vector<Submission> batch;
  calls.reserve(list.size());
  batch.reserve(list.size());
  for (const nb::handle item : list) {
    calls.push_back(&nb::cast<Call&>(item));
    batch.push_back(calls.back()->submission);
  }
  const Result<std::vector<Handle>> handles = self.run_in_engine(
      [&](Engine& engine) { return engine.submit_batch(batch, wait_limit_of(caller_waits)); });
  raise_if_failed(handles.status());
  for (std::size_t i = 0; i < calls.size(); ++i) calls[i]->handle = (*handles)[i];
}

// Returns the outcome of a call, or raises its error. The call keeps its name until release().
Outcome outcome_of(BoundEngine& self, Handle handle) {
  Outcome outcome = self.engine_for_calls_in_flight()->peek(handle);
  raise_if_failed(outcome.status);
  return outcome;
}

void check_outcome(BoundEngine& self, Handle handle) { outcome_of(self, handle); }

// Waits until the call is done, and releases it. Several threads may collect the same call, even
// after an interrupted wait: all get the same outcome.
void collect(BoundEngine& self, Call& call) {
  if (!call.collected_status) self.wait(call.handle);
  // Another thread may have collected the call while this thread waited. Now no other thread can
  // collect the call, because this thread holds the GIL.
  if (!call.collected_status)
    call.collected_status = self.engine_for_calls_in_flight()->take(call.handle).status;
  raise_if_failed(*call.collected_status);
}

// Raises the error of a failed call, like check_outcome(). Unlike check_outcome(), this function
// also works after collect().
void check_call_outcome(BoundEngine& self, const Call& call) {
  if (!call.collected_status) return check_outcome(self, call.handle);
  raise_if_failed(*call.collected_status);
}

// Returns the rows that this rank has received, and the number of rows that each member has sent to
// this rank.
nb::tuple peek_received(BoundEngine& self, Handle handle, const BufferView& buffer) {
  Outcome outcome = outcome_of(self, handle);
  std::vector<std::size_t> shape(buffer.shape.begin(), buffer.shape.end());
  const auto& rows = outcome.received_rows;
  shape.at(0) =
      static_cast<std::size_t>(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}));
  return nb::make_tuple(make_array(std::move(outcome.received), buffer.dtype, shape), rows);
}

int peek_source(BoundEngine& self, Handle handle) { return outcome_of(self, handle).source; }

int peek_last_joined(BoundEngine& self, Handle handle) {
  return outcome_of(self, handle).last_joined;
}

}  // namespace

void bind_collectives(nb::module_& module, nb::class_<BoundEngine>& engine) {
  nb::class_<BufferView>(module, "BufferView")
      .def(
          "__init__",
          [](BufferView* self, int dtype, const nb::tuple& shape, std::uintptr_t input,
             std::uintptr_t output, int device) {
            new (self) BufferView{static_cast<DType>(dtype), static_cast<DeviceType>(device),
                                  integers_of(shape), input, output};
          },
          nb::arg(), nb::arg(), nb::arg(), nb::arg(),
          nb::arg() = static_cast<int>(DeviceType::kCpu));
  nb::class_<Call>(module, "Call").def_ro("handle", &Call::handle);
  for (const OperationRow& row : kOperations) bind_operation(module, row);
  bind_message(module, row_of(Operation::kSend));
  bind_message(module, row_of(Operation::kReceive));
  module.def("invalid_call", &invalid_call).def("scattered_rows", &scattered_rows);
  engine.def("run", &run)
      .def("submit", &submit)
      .def("submit_batch", &submit_batch)
      .def("poll", &BoundEngine::poll)
      .def("wait", &BoundEngine::wait)
      .def("release", &BoundEngine::release)
      .def("drop", &BoundEngine::drop)
      .def("collect", &collect)
      .def("check_outcome", &check_outcome)
      .def("check_call_outcome", &check_call_outcome)
      .def("peek_received", &peek_received)
      .def("peek_source", &peek_source)
      .def("peek_last_joined", &peek_last_joined);
}

}  // namespace farandole::python
