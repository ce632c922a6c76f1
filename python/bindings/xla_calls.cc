#include "xla_calls.h"

#include <xla/ffi/api/ffi.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "call_batch.h"
#include "current_engine.h"
#include "errors.h"
#include "farandole/engine.h"

namespace nb = nanobind;
namespace ffi = xla::ffi;

namespace farandole::python {
namespace {

// How long the thread of a program makes progress itself. If the call is done in this time, no
// other thread must be woken. A longer time would delay only this program, because XLA runs the
// calls of a program one after another.
constexpr std::chrono::milliseconds kWaitLimit{1};

std::optional<DType> dtype_of(ffi::DataType type) {
  switch (type) {
    case ffi::PRED:
      return DType::kBool;
    case ffi::S8:
      return DType::kInt8;
    case ffi::U8:
      return DType::kUInt8;
    case ffi::S16:
      return DType::kInt16;
    case ffi::U16:
      return DType::kUInt16;
    case ffi::S32:
      return DType::kInt32;
    case ffi::S64:
      return DType::kInt64;
    case ffi::F16:
      return DType::kFloat16;
    case ffi::BF16:
      return DType::kBFloat16;
    case ffi::F32:
      return DType::kFloat32;
    case ffi::F64:
      return DType::kFloat64;
    default:
      return std::nullopt;
  }
}

ffi::Error error_of(const Status& status) {
  return {ffi::ErrorCode::kAborted,
          std::string(exception_class_name(status.code())) + ": " + status.message()};
}

// The calls of one run of the handler.
class XlaBatch : public CallBatch {
 public:
  explicit XlaBatch(std::vector<ffi::AnyBuffer> results) : results_(std::move(results)) {}

  ffi::Future future() const { return ffi::Future(promise_); }

 private:
  // The results of some operations are in memory of the engine, because the members may send
  // different numbers of rows. A compiled program expects equal numbers, so this function checks
  // that they are equal.
  Status store_result(std::size_t index, const Outcome& outcome) override {
    if (!outcome.received) return {};
    const ffi::AnyBuffer& result = results_[index];
    const auto member_count = static_cast<std::int64_t>(outcome.received_rows.size());
    for (const std::int64_t rows : outcome.received_rows)
      if (rows * member_count != result.dimensions().front())
        return Status::fix_call(
            "a member has sent " + std::to_string(rows) +
            " rows, but the compiled program expects " +
            std::to_string(result.dimensions().front() / member_count) +
            ": inside jit, all members must send equally many rows; make the call outside of jit");
    std::memcpy(result.untyped_data(), outcome.received.get(), result.size_bytes());
    return {};
  }

  void finish(const Status& failure) override {
    if (failure.ok())
      promise_.SetAvailable();
    else
      promise_.SetError(error_of(failure));
  }

  const std::vector<ffi::AnyBuffer> results_;
  ffi::Promise promise_;
};

// The attributes of a call, which primitive.py always sets.
class Attributes {
 public:
  explicit Attributes(const ffi::Dictionary& dictionary) : dictionary_(dictionary) {}
  template <class Value>
  Value get(const char* name) const {
    return *dictionary_.get<Value>(name);
  }
  std::int64_t number(const char* name) const { return get<std::int64_t>(name); }

 private:
  const ffi::Dictionary& dictionary_;
};

// Returns the buffers without the tokens, which only order the calls.
template <class Buffers>
std::vector<ffi::AnyBuffer> arrays_of(const Buffers& buffers) {
  std::vector<ffi::AnyBuffer> arrays;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    ffi::AnyBuffer array = [&] {
      if constexpr (std::is_same_v<Buffers, ffi::RemainingArgs>)
        return *buffers.template get<ffi::AnyBuffer>(i);
      else
        return **buffers.template get<ffi::AnyBuffer>(i);
    }();
    if (array.element_type() != ffi::TOKEN) arrays.push_back(array);
  }
  return arrays;
}

Result<Submission> submission_of(const Attributes& attributes, const ffi::AnyBuffer& input,
                                 const ffi::AnyBuffer& output) {
  const auto dtype = dtype_of(input.element_type());
  if (!dtype) return Status::fix_call("an array of this dtype cannot be sent");
  Submission submission;
  submission.operation = static_cast<Operation>(attributes.number("operation"));
  submission.group = static_cast<GroupId>(attributes.number("group"));
  submission.dtype = *dtype;
  submission.shape.assign(input.dimensions().begin(), input.dimensions().end());
  submission.input = input.untyped_data();
  submission.output = output.untyped_data();
  submission.reduce_op = static_cast<ReduceOp>(attributes.number("reduce_op"));
  submission.prescale = attributes.get<double>("prescale");
  submission.postscale = attributes.get<double>("postscale");
  submission.root_rank = static_cast<int>(attributes.number("root_rank"));
  return submission;
}

ffi::Future failed_future(const Status& status) {
  ffi::Promise promise;
  promise.SetError(error_of(status));
  return ffi::Future(promise);
}

ffi::Future run_calls(ffi::RemainingArgs operands, ffi::RemainingRets results,
                      const ffi::Dictionary& dictionary) {
  const Attributes attributes(dictionary);
  const CurrentEngine current = current_engine();
  const auto& engine = current.engine;
  if (!engine)
    return failed_future(
        Status::fix_call("a compiled program makes a call outside a job: call init()"));
  if (job_of_program(attributes.number("program")) != current.job_number)
    return failed_future(Status::fix_call(
        "this program was compiled before the last init(), for the ranks and groups of that time: "
        "call jax.clear_caches() after init()"));
  const auto inputs = arrays_of(operands);
  auto outputs = arrays_of(results);
  const std::size_t count = inputs.size();
  auto batch = std::make_unique<XlaBatch>(outputs);
  std::vector<Submission> calls;
  for (std::size_t i = 0; i < count; ++i) {
    auto submission = submission_of(attributes, inputs[i], outputs[i]);
    if (!submission.ok()) return failed_future(submission.status());
    submission->name = attributes.get<std::string_view>("name");
    if (count > 1) submission->name += "." + std::to_string(i);
    calls.push_back(*std::move(submission));
  }
  ffi::Future future = batch->future();
  CallBatch::start(std::move(batch), *engine, std::move(calls), kWaitLimit);
  return future;
}

XLA_FFI_DEFINE_HANDLER(kHandler, run_calls,
                       ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());

}  // namespace

void bind_xla_calls(nb::module_& module) {
  module.attr("xla_call") = nb::capsule(reinterpret_cast<const void*>(kHandler));
  module.def("job_number", [] { return current_engine().job_number; });
  module.def("set_job_of_program", &set_job_of_program, nb::arg("program"), nb::arg("job"));
}

}  // namespace farandole::python
