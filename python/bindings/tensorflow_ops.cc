#include "tensorflow_ops.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
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
#include "tensorflow_api.h"

namespace farandole::python::tensorflow {
namespace {

constexpr std::size_t kTextBytesMax = 32;

struct TypeRow {
  int code;  // of tensorflow/c/tf_datatype.h
  DType dtype;
};

constexpr std::array<TypeRow, 11> kTypes = {{
    {1, DType::kFloat32},
    {2, DType::kFloat64},
    {kInt32, DType::kInt32},
    {4, DType::kUInt8},
    {5, DType::kInt16},
    {6, DType::kInt8},
    {kInt64, DType::kInt64},
    {10, DType::kBool},
    {14, DType::kBFloat16},
    {17, DType::kUInt16},
    {19, DType::kFloat16},
}};

std::optional<DType> dtype_of(int code) {
  const auto* row = std::ranges::find(kTypes, code, &TypeRow::code);
  return row == kTypes.end() ? std::nullopt : std::optional(row->dtype);
}

struct QueryRow {
  std::string_view name;
  std::int32_t (*answer)(const Engine& engine, const std::vector<int>& ranks);
};

constexpr std::array<QueryRow, 5> kQueries = {{
    {"rank", [](const Engine& engine, const std::vector<int>&) { return engine.topology().rank; }},
    {"local_rank",
     [](const Engine& engine, const std::vector<int>&) { return engine.topology().local_rank; }},
    {"local_size",
     [](const Engine& engine, const std::vector<int>&) { return engine.topology().local_size; }},
    {"size",
     [](const Engine&, const std::vector<int>& ranks) { return static_cast<int>(ranks.size()); }},
    {"included",
     [](const Engine& engine, const std::vector<int>& ranks) {
       return static_cast<int>(std::ranges::binary_search(ranks, engine.topology().rank));
     }},
}};

// Ends an operation with an error. If the call is wrong, the error has the same code as in Horovod.
void fail_operation(KernelContext* context, const Status& failure) {
  const OwnedStatus status = new_status();
  const int code = failure.code() == StatusCode::kFixCall ? kFailedPrecondition : kAborted;
  const std::string text =
      std::string(exception_class_name(failure.code())) + ": " + failure.message();
  api().set_status(status.get(), code, text.c_str());
  api().fail(context, status.get());
}

// Turns an error of TensorFlow, such as a failed allocation, into a Status.
Status status_of(const TfStatus* status, std::string_view action) {
  if (api().code_of(status) == kOk) return {};
  return Status::stop("TensorFlow could not " + std::string(action) + ": " +
                      api().message_of(status));
}

// Reads the attributes of an operation, once for each use of the operation in a program. If an
// attribute cannot be read, report_failure() makes TensorFlow reject the operation with the first
// error.
class Attributes {
 public:
  explicit Attributes(KernelConstruction* construction) : construction_(construction) {}

  std::int64_t number(const char* name) {
    std::int64_t value = 0;
    api().attribute_number(construction_, name, &value, status_.get());
    record_failure();
    return value;
  }
  double double_of_bits(const char* name) { return std::bit_cast<double>(number(name)); }
  std::string text(const char* name) {
    std::string value(kTextBytesMax, '\0');
    api().attribute_text(construction_, name, value.data(), value.size(), status_.get());
    record_failure();
    return value.c_str();
  }
  std::vector<std::string> texts(const char* name) {
    std::int32_t count = 0;
    std::int32_t bytes = 0;
    api().attribute_size(construction_, name, &count, &bytes, status_.get());
    if (record_failure()) return {};
    std::vector<char*> begins(static_cast<std::size_t>(count));
    std::vector<std::size_t> lengths(begins.size());
    std::vector<char> storage(static_cast<std::size_t>(bytes));
    api().attribute_texts(construction_, name, begins.data(), lengths.data(), count, storage.data(),
                          storage.size(), status_.get());
    if (record_failure()) return {};
    std::vector<std::string> strings;
    for (std::size_t i = 0; i < begins.size(); ++i) strings.emplace_back(begins[i], lengths[i]);
    return strings;
  }

  void reject(const std::string& text) {
    api().set_status(status_.get(), kInvalidArgument, text.c_str());
    record_failure();
  }
  void report_failure() {
    if (failure_) api().fail_construction(construction_, failure_.get());
  }

 private:
  // Returns whether the last call of TensorFlow has failed.
  bool record_failure() {
    if (api().code_of(status_.get()) == kOk) return false;
    OwnedStatus failure = std::exchange(status_, new_status());
    if (!failure_) failure_ = std::move(failure);
    return true;
  }

  KernelConstruction* construction_;
  OwnedStatus status_ = new_status();
  OwnedStatus failure_;
};

// What all calls of one operation in a program have in common.
struct Kernel {
  std::vector<std::string> names;
  Submission call_template;  // does not contain name, dtype, shape and memory
  // The job in which the operation may run. N: only job N. 0: any job, because the operation uses
  // only the world. −N: job N, and each later job until init() gets other groups.
  std::int64_t job = 0;
  std::chrono::milliseconds wait_limit{};

  bool may_run_in(const CurrentEngine& current) const {
    return job == 0 || job == current.job_number ||
           (job < 0 && -job >= current.first_job_with_same_groups);
  }
};

template <Operation operation>
void* create(KernelConstruction* construction) {
  Attributes attributes(construction);
  auto kernel = std::make_unique<Kernel>();
  kernel->names = attributes.texts("names");
  kernel->job = attributes.number("job");
  kernel->wait_limit = std::chrono::milliseconds(attributes.number("wait_ms"));
  kernel->call_template.operation = operation;
  kernel->call_template.group = static_cast<GroupId>(attributes.number("group"));
  if constexpr (row_of(operation).reduces) {
    kernel->call_template.reduce_op = static_cast<ReduceOp>(attributes.number("reduce_op"));
    kernel->call_template.prescale = attributes.double_of_bits("prescale");
    kernel->call_template.postscale = attributes.double_of_bits("postscale");
  }
  if constexpr (row_of(operation).rooted)
    kernel->call_template.root_rank = static_cast<int>(attributes.number("root_rank"));
  attributes.report_failure();
  return kernel.release();
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

// The calls of one run of an operation. TensorFlow keeps the context and the inputs until `done` is
// called.
class TensorFlowBatch : public CallBatch {
 public:
  // `done` is only valid until the kernel returns, so this object copies the function to which
  // `done` points. The copy works, because TensorFlow uses the same C++ standard library
  // (docs/decisions/0068).
  TensorFlowBatch(KernelContext* context, DoneCallback* done)
      : context_(context), done_(*static_cast<std::function<void()>*>(done)) {}

  // Returns the call for one tensor of the operation, and gives it memory for its result.
  Result<Submission> call_of(const Kernel& kernel, std::size_t index, const Engine& engine);

  void finish(const Status& failure) override {
    if (!failure.ok()) {
      fail_operation(context_, failure);
    }
    api().run_done_callback(&done_);
  }

 private:
  Result<OwnedTensor> read_input(std::size_t index) {
    Tensor* tensor = nullptr;
    api().get_input(context_, static_cast<int>(index), &tensor, status_.get());
    OwnedTensor owned_tensor(tensor);
    if (Status status = status_of(status_.get(), "read an input"); !status.ok()) return status;
    return owned_tensor;
  }

  // Gives the call memory for a result with the shape of its input. This is the memory of the input
  // itself if nothing else needs the input.
  Status set_same_shape_output(std::size_t index, OwnedTensor tensor, Submission& call) {
    tensor.reset();  // TensorFlow reuses an input only if we do not refer to it
    const int tensor_index = static_cast<int>(index);
    int forwarded_input = -1;
    const OwnedTensor output(api().forward_or_allocate(
        context_, &tensor_index, 1, tensor_index, call.shape.data(),
        static_cast<int>(call.shape.size()), &forwarded_input, status_.get()));
    if (!output) return status_of(status_.get(), "allocate a result");
    call.output = api().data_of(output.get());
    return {};
  }

  Status set_scattered_output(std::size_t index, int type, const Engine& engine, Submission& call);
  Status set_splits(std::size_t index, Submission& call);
  Status store_result(std::size_t index, const Outcome& outcome) override;
  Status set_received_rows(std::size_t index, const std::vector<std::int64_t>& rows);

  KernelContext* context_;
  std::function<void()> done_;
  OwnedStatus status_ = new_status();
  struct ReceivedResult {
    int type;
    std::vector<std::int64_t> shape;  // the shape of the input
  };
  // One entry for each call, if the engine allocates the memory of the results. Otherwise empty.
  std::vector<ReceivedResult> received_results_;
};

Result<Submission> TensorFlowBatch::call_of(const Kernel& kernel, std::size_t index,
                                            const Engine& engine) {
  auto tensor = read_input(index);
  if (!tensor.ok()) return tensor.status();
  const int type = api().type_of(tensor->get());
  const auto dtype = dtype_of(type);
  if (!dtype) return Status::fix_call("a tensor of this dtype cannot be sent");
  Submission call = kernel.call_template;
  call.name = kernel.names[index];
  call.dtype = *dtype;
  for (int i = 0; i < api().dim_count(tensor->get()); ++i)
    call.shape.push_back(api().dim(tensor->get(), i));
  call.input = api().data_of(tensor->get());
  Status status;
  if (row_of(call.operation).output_rule == OutputRule::kEngineMemory) {
    received_results_.push_back({type, call.shape});
    if (row_of(call.operation).has_splits) status = set_splits(kernel.names.size() + index, call);
  } else if (row_of(call.operation).may_be_in_place) {
    status = set_same_shape_output(index, *std::move(tensor), call);
  } else {
    status = set_scattered_output(index, type, engine, call);
  }
  if (!status.ok()) return status;
  return call;
}

Status TensorFlowBatch::set_scattered_output(std::size_t index, int type, const Engine& engine,
                                             Submission& call) {
  auto shape = call.shape;
  const auto ranks = engine.ranks_of(call.group);
  const auto own_position = std::ranges::find(ranks, engine.topology().rank);
  // If the tensor has no dimension, or this rank is not a member, the engine will reject the call,
  // so the shape does not matter.
  if (!shape.empty() && own_position != ranks.end())
    shape[0] = scattered_rows(shape[0], static_cast<int>(ranks.size()),
                              static_cast<int>(std::distance(ranks.begin(), own_position)));
  std::size_t bytes = row_of(call.dtype).bytes;
  for (const std::int64_t dim : shape) bytes *= static_cast<std::size_t>(dim);
  const OwnedTensor output(api().allocate_output(context_, static_cast<int>(index), type,
                                                 shape.data(), static_cast<int>(shape.size()),
                                                 bytes, status_.get()));
  if (!output) return status_of(status_.get(), "allocate a result");
  call.output = api().data_of(output.get());
  return {};
}

Status TensorFlowBatch::set_splits(std::size_t index, Submission& call) {
  auto tensor = read_input(index);
  if (!tensor.ok()) return tensor.status();
  if (api().dim_count(tensor->get()) != 1)
    return Status::fix_call("splits must be a vector, with the number of rows for each member");
  const auto* rows = static_cast<const std::int64_t*>(api().data_of(tensor->get()));
  call.splits.assign(rows, rows + api().dim(tensor->get(), 0));
  return {};
}

Status TensorFlowBatch::store_result(std::size_t index, const Outcome& outcome) {
  if (received_results_.empty()) return {};  // the result is in TensorFlow's memory
  const OwnedStatus status = new_status();
  auto [type, shape] = received_results_[index];
  shape[0] = 0;
  for (const std::int64_t rows : outcome.received_rows) shape[0] += rows;
  std::size_t bytes = row_of(*dtype_of(type)).bytes;
  for (const std::int64_t dim : shape) bytes *= static_cast<std::size_t>(dim);
  // The result tensor uses the memory that the engine has allocated, without a copy.
  auto memory = std::make_unique<std::shared_ptr<std::byte>>(outcome.received);
  const auto release = [](void*, std::size_t, void* argument) {
    delete static_cast<std::shared_ptr<std::byte>*>(argument);
  };
  std::byte* const data = outcome.received.get();
  const OwnedTensor result(api().new_tensor(type, shape.data(), static_cast<int>(shape.size()),
                                            data, bytes, release, memory.release()));
  api().set_output(context_, static_cast<int>(index), result.get(), status.get());
  if (Status failure = status_of(status.get(), "set a result"); !failure.ok()) return failure;
  return set_received_rows(received_results_.size() + index, outcome.received_rows);
}

Status TensorFlowBatch::set_received_rows(std::size_t index,
                                          const std::vector<std::int64_t>& rows) {
  const OwnedStatus status = new_status();
  const auto count = static_cast<std::int64_t>(rows.size());
  const std::size_t bytes = rows.size() * sizeof(std::int64_t);
  const OwnedTensor output(api().allocate_output(context_, static_cast<int>(index), kInt64, &count,
                                                 1, bytes, status.get()));
  if (!output) return status_of(status.get(), "allocate a result");
  std::memcpy(api().data_of(output.get()), rows.data(), bytes);
  return {};
}

void compute(void* pointer, KernelContext* context, DoneCallback* done) {
  const Kernel& kernel = *static_cast<Kernel*>(pointer);
  auto batch = std::make_unique<TensorFlowBatch>(context, done);
  const CurrentEngine current = current_engine();
  const auto& engine = current.engine;
  if (!engine)
    return batch->finish(Status::fix_call("farandole is not initialized: call init() first"));
  if (!kernel.may_run_in(current))
    return batch->finish(Status::fix_call(
        "this function was traced before the last init(), for the ranks and groups of that time: "
        "make a new tf.function after init()"));
  std::vector<Submission> calls;
  for (std::size_t i = 0; i < kernel.names.size(); ++i) {
    auto call = batch->call_of(kernel, i, *engine);
    if (!call.ok()) return batch->finish(call.status());
    calls.push_back(*std::move(call));
  }
  CallBatch::start(std::move(batch), *engine, std::move(calls), kernel.wait_limit);
}

struct Query {
  const QueryRow* row = nullptr;
  GroupId group = kWorld;
};

void* create_query(KernelConstruction* construction) {
  Attributes attributes(construction);
  const std::string name = attributes.text("what");
  const auto* row = std::ranges::find(kQueries, name, &QueryRow::name);
  if (row == kQueries.end()) attributes.reject("farandole has no number `" + name + "`");
  auto query = std::make_unique<Query>();
  query->row = row;
  query->group = static_cast<GroupId>(attributes.number("group"));
  attributes.report_failure();
  return query.release();
}

void destroy_query(void* query) { delete static_cast<Query*>(query); }

void compute_query(void* pointer, KernelContext* context) {
  const Query& query = *static_cast<Query*>(pointer);
  const auto engine = current_engine().engine;
  if (!engine)
    return fail_operation(context,
                          Status::fix_call("farandole is not initialized: call init() first"));
  const auto ranks = engine->ranks_of(query.group);
  if (ranks.empty())
    return fail_operation(context, Status::fix_call("there is no process set with the number " +
                                                    std::to_string(query.group)));
  const OwnedStatus status = new_status();
  const OwnedTensor output(
      api().allocate_output(context, 0, kInt32, nullptr, 0, sizeof(std::int32_t), status.get()));
  if (!output) return fail_operation(context, status_of(status.get(), "allocate a result"));
  const std::int32_t answer = query.row->answer(*engine, ranks);
  std::memcpy(api().data_of(output.get()), &answer, sizeof answer);
}

void infer_same_shapes(ShapeContext* context, TfStatus* status) {
  ShapeHandle* const shape = api().new_shape();
  const auto count = static_cast<int>(api().input_count_of_shapes(context));
  for (int i = 0; i < count && api().code_of(status) == kOk; ++i) {
    api().input_shape(context, i, shape, status);
    if (api().code_of(status) == kOk) api().set_output_shape(context, i, shape, status);
  }
  api().delete_shape(shape);
}

// Sets all shapes to unknown. Later, farandole/tensorflow/ops.py sets the dimensions that it knows.
void infer_unknown_shapes(ShapeContext* context, TfStatus* status) {
  api().set_unknown_shapes(context, status);
}

OpBuilder* new_op(const char* name) {
  OpBuilder* const op = api().new_op(name);
  api().set_stateful(op, true);  // calls must not be merged, reordered, left out or precomputed
  api().add_attribute(op, "group: int");
  return op;
}

void register_op_and_kernel(const char* name, OpBuilder* op, KernelBuilder* kernel) {
  const OwnedStatus status = new_status();
  api().register_op(op, status.get());
  api().register_kernel(name, kernel, status.get());
}

template <Operation operation>
void register_call(const char* name) {
  constexpr OperationRow kRow = row_of(operation);
  constexpr bool kResultIsReceived = kRow.output_rule == OutputRule::kEngineMemory;
  OpBuilder* const op = new_op(name);
  api().add_attribute(op, "T: list(type) >= 1");
  for (const char* text : {"names: list(string) >= 1", "job: int", "wait_ms: int"})
    api().add_attribute(op, text);
  if (kRow.reduces)
    for (const char* text : {"reduce_op: int", "prescale: int", "postscale: int"})
      api().add_attribute(op, text);
  if (kRow.rooted) api().add_attribute(op, "root_rank: int");
  api().add_input(op, "tensors: T");
  api().add_output(op, "results: T");
  if (kResultIsReceived) {
    api().add_attribute(op, "N: int >= 1");
    if (kRow.has_splits) api().add_input(op, "splits: N * int64");
    api().add_output(op, "received_rows: N * int64");
  }
  api().set_infer_shapes(op, kRow.may_be_in_place ? &infer_same_shapes : &infer_unknown_shapes);
  register_op_and_kernel(
      name, op, api().new_async_kernel(name, "CPU", &create<operation>, &compute, &destroy));
}

void register_query() {
  constexpr const char* kName = "FarandoleQuery";
  OpBuilder* const op = new_op(kName);
  api().add_attribute(op, "what: string");
  api().add_output(op, "answer: int32");
  api().set_infer_shapes(op, &infer_unknown_shapes);
  register_op_and_kernel(
      kName, op, api().new_kernel(kName, "CPU", &create_query, &compute_query, &destroy_query));
}

}  // namespace
}  // namespace farandole::python::tensorflow

void farandole_register_tensorflow_ops() {
  using namespace farandole::python::tensorflow;  // NOLINT(google-build-using-namespace)
  static bool registered = false;
  if (registered || load_api() == nullptr) return;
  registered = true;
  register_call<farandole::Operation::kAllreduce>("FarandoleAllreduce");
  register_call<farandole::Operation::kBroadcast>("FarandoleBroadcast");
  register_call<farandole::Operation::kAllgather>("FarandoleAllgather");
  register_call<farandole::Operation::kAlltoall>("FarandoleAlltoall");
  register_call<farandole::Operation::kReducescatter>("FarandoleReducescatter");
  register_query();
}
