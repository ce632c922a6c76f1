// The functions of TensorFlow's C API that the glue calls. load_api() finds them in the TensorFlow
// that this process has loaded. So farandole.core is built without TensorFlow, and works with every
// version of TensorFlow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace farandole::python::tensorflow {

struct KernelBuilder;
struct KernelConstruction;
struct KernelContext;
struct OpBuilder;
struct ShapeContext;
struct ShapeHandle;
struct TfStatus;
struct Tensor;
// TensorFlow gives such an object to an asynchronous kernel. With it, the kernel reports its end.
using DoneCallback = void;

using CreateKernel = void* (*)(KernelConstruction*);
using Compute = void (*)(void* kernel, KernelContext*);
using ComputeAsync = void (*)(void* kernel, KernelContext*, DoneCallback*);
using DeleteKernel = void (*)(void* kernel);
using InferShapes = void (*)(ShapeContext*, TfStatus*);
using Deallocate = void (*)(void* data, std::size_t bytes, void* argument);

// Codes of tensorflow/c/tf_status.h.
inline constexpr int kOk = 0;
inline constexpr int kInvalidArgument = 3;
inline constexpr int kFailedPrecondition = 9;
inline constexpr int kAborted = 10;

// Codes of tensorflow/c/tf_datatype.h.
inline constexpr int kInt32 = 3;
inline constexpr int kInt64 = 9;

// Functions of TensorFlow. tensorflow_api.cc has the TensorFlow name of each; the headers
// tensorflow/c/{kernels,ops,tf_status,tf_tensor}.h document them.
struct Api {
  TfStatus* (*new_status)() = nullptr;
  void (*delete_status)(TfStatus*) = nullptr;
  void (*set_status)(TfStatus*, int code, const char* text) = nullptr;
  int (*code_of)(const TfStatus*) = nullptr;
  const char* (*message_of)(const TfStatus*) = nullptr;

  Tensor* (*new_tensor)(int type, const std::int64_t* dims, int dim_count, void* data,
                        std::size_t bytes, Deallocate, void* argument) = nullptr;
  void (*delete_tensor)(Tensor*) = nullptr;
  int (*type_of)(const Tensor*) = nullptr;
  int (*dim_count)(const Tensor*) = nullptr;
  std::int64_t (*dim)(const Tensor*, int index) = nullptr;
  void* (*data_of)(const Tensor*) = nullptr;

  OpBuilder* (*new_op)(const char* name) = nullptr;
  void (*add_attribute)(OpBuilder*, const char* text) = nullptr;
  void (*add_input)(OpBuilder*, const char* text) = nullptr;
  void (*add_output)(OpBuilder*, const char* text) = nullptr;
  void (*set_stateful)(OpBuilder*, bool) = nullptr;
  void (*set_infer_shapes)(OpBuilder*, InferShapes) = nullptr;
  void (*register_op)(OpBuilder*, TfStatus*) = nullptr;

  ShapeHandle* (*new_shape)() = nullptr;
  void (*delete_shape)(ShapeHandle*) = nullptr;
  std::int64_t (*input_count_of_shapes)(ShapeContext*) = nullptr;
  void (*input_shape)(ShapeContext*, int index, ShapeHandle*, TfStatus*) = nullptr;
  void (*set_output_shape)(ShapeContext*, int index, ShapeHandle*, TfStatus*) = nullptr;
  void (*set_unknown_shapes)(ShapeContext*, TfStatus*) = nullptr;

  KernelBuilder* (*new_kernel)(const char* op, const char* device, CreateKernel, Compute,
                               DeleteKernel) = nullptr;
  KernelBuilder* (*new_async_kernel)(const char* op, const char* device, CreateKernel, ComputeAsync,
                                     DeleteKernel) = nullptr;
  void (*register_kernel)(const char* name, KernelBuilder*, TfStatus*) = nullptr;

  void (*attribute_size)(KernelConstruction*, const char* name, std::int32_t* list_size,
                         std::int32_t* bytes, TfStatus*) = nullptr;
  void (*attribute_number)(KernelConstruction*, const char* name, std::int64_t*,
                           TfStatus*) = nullptr;
  void (*attribute_text)(KernelConstruction*, const char* name, char* text, std::size_t bytes,
                         TfStatus*) = nullptr;
  void (*attribute_texts)(KernelConstruction*, const char* name, char** texts, std::size_t* lengths,
                          int count, void* storage, std::size_t storage_bytes, TfStatus*) = nullptr;
  void (*fail_construction)(KernelConstruction*, TfStatus*) = nullptr;

  void (*get_input)(KernelContext*, int index, Tensor**, TfStatus*) = nullptr;
  Tensor* (*allocate_output)(KernelContext*, int index, int type, const std::int64_t* dims,
                             int dim_count, std::size_t bytes, TfStatus*) = nullptr;
  Tensor* (*forward_or_allocate)(KernelContext*, const int* candidates, int candidate_count,
                                 int output, const std::int64_t* dims, int dim_count,
                                 int* forwarded_input, TfStatus*) = nullptr;
  void (*set_output)(KernelContext*, int index, const Tensor*, TfStatus*) = nullptr;
  void (*fail)(KernelContext*, TfStatus*) = nullptr;
  void (*run_done_callback)(DoneCallback*) = nullptr;
};

// Returns the functions of the loaded TensorFlow. Returns null if no TensorFlow is loaded, or if
// the loaded TensorFlow lacks one of the functions. Call load_api() once, before any other function
// here and from one thread.
const Api* load_api();

// The functions, after load_api() has found them.
const Api& api();

struct StatusDeleter {
  void operator()(TfStatus* status) const { api().delete_status(status); }
};
struct TensorDeleter {
  void operator()(Tensor* tensor) const { api().delete_tensor(tensor); }
};
using OwnedStatus = std::unique_ptr<TfStatus, StatusDeleter>;
using OwnedTensor = std::unique_ptr<Tensor, TensorDeleter>;

inline OwnedStatus new_status() { return OwnedStatus(api().new_status()); }

}  // namespace farandole::python::tensorflow
