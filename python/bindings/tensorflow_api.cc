#include "tensorflow_api.h"

#include <dlfcn.h>

namespace farandole::python::tensorflow {
namespace {

Api loaded_api;

// Finds functions in a loaded library.
class FunctionFinder {
 public:
  explicit FunctionFinder(void* library) : library_(library) {}
  bool found_all() const { return found_all_; }

  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    found_all_ = found_all_ && function != nullptr;
  }

 private:
  void* library_;
  bool found_all_ = true;
};

void find_status_and_tensor_functions(FunctionFinder& finder, Api& api) {
  finder.find(api.new_status, "TF_NewStatus");
  finder.find(api.delete_status, "TF_DeleteStatus");
  finder.find(api.set_status, "TF_SetStatus");
  finder.find(api.code_of, "TF_GetCode");
  finder.find(api.message_of, "TF_Message");
  finder.find(api.new_tensor, "TF_NewTensor");
  finder.find(api.delete_tensor, "TF_DeleteTensor");
  finder.find(api.type_of, "TF_TensorType");
  finder.find(api.dim_count, "TF_NumDims");
  finder.find(api.dim, "TF_Dim");
  finder.find(api.data_of, "TF_TensorData");
}

void find_registration_functions(FunctionFinder& finder, Api& api) {
  finder.find(api.new_op, "TF_NewOpDefinitionBuilder");
  finder.find(api.add_attribute, "TF_OpDefinitionBuilderAddAttr");
  finder.find(api.add_input, "TF_OpDefinitionBuilderAddInput");
  finder.find(api.add_output, "TF_OpDefinitionBuilderAddOutput");
  finder.find(api.set_stateful, "TF_OpDefinitionBuilderSetIsStateful");
  finder.find(api.set_infer_shapes, "TF_OpDefinitionBuilderSetShapeInferenceFunction");
  finder.find(api.register_op, "TF_RegisterOpDefinition");
  finder.find(api.new_shape, "TF_NewShapeHandle");
  finder.find(api.delete_shape, "TF_DeleteShapeHandle");
  finder.find(api.input_count_of_shapes, "TF_ShapeInferenceContextNumInputs");
  finder.find(api.input_shape, "TF_ShapeInferenceContextGetInput");
  finder.find(api.set_output_shape, "TF_ShapeInferenceContextSetOutput");
  finder.find(api.set_unknown_shapes, "TF_ShapeInferenceContextSetUnknownShape");
  finder.find(api.new_kernel, "TF_NewKernelBuilder");
  finder.find(api.new_async_kernel, "TF_NewAsyncKernelBuilder");
  finder.find(api.register_kernel, "TF_RegisterKernelBuilder");
}

void find_kernel_functions(FunctionFinder& finder, Api& api) {
  finder.find(api.attribute_size, "TF_OpKernelConstruction_GetAttrSize");
  finder.find(api.attribute_number, "TF_OpKernelConstruction_GetAttrInt64");
  finder.find(api.attribute_text, "TF_OpKernelConstruction_GetAttrString");
  finder.find(api.attribute_texts, "TF_OpKernelConstruction_GetAttrStringList");
  finder.find(api.fail_construction, "TF_OpKernelConstruction_Failure");
  finder.find(api.get_input, "TF_GetInput");
  finder.find(api.allocate_output, "TF_AllocateOutput");
  finder.find(api.forward_or_allocate, "TF_ForwardInputOrAllocateOutput");
  finder.find(api.set_output, "TF_SetOutput");
  finder.find(api.fail, "TF_OpKernelContext_Failure");
  finder.find(api.run_done_callback, "TF_RunAsyncOpKernelDoneCallback");
}

}  // namespace

const Api* load_api() {
  void* const library = dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  FunctionFinder finder(library);
  find_status_and_tensor_functions(finder, loaded_api);
  find_registration_functions(finder, loaded_api);
  find_kernel_functions(finder, loaded_api);
  return finder.found_all() ? &loaded_api : nullptr;
}

const Api& api() { return loaded_api; }

}  // namespace farandole::python::tensorflow
