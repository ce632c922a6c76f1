// tf.load_op_library() notices only operations that are registered while it loads a library. Python
// has loaded farandole.core before, so tf.load_op_library() would not load farandole.core again.
// Therefore, tf.load_op_library() loads this small library, which calls farandole.core to register
// the operations.
#include <dlfcn.h>

#include <string>

namespace {

__attribute__((constructor)) void register_ops() {
  Dl_info this_library{};
  if (dladdr(reinterpret_cast<void*>(&register_ops), &this_library) == 0) return;
  const std::string path = this_library.dli_fname;
  const std::string core_path = path.substr(0, path.rfind('/') + 1) + FARANDOLE_CORE_FILE;
  void* const library = dlopen(core_path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return;
  void* const function = dlsym(library, "farandole_register_tensorflow_ops");
  if (function != nullptr) reinterpret_cast<void (*)()>(function)();
}

}  // namespace
