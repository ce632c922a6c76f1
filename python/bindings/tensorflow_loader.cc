// A library for tf.load_op_library(), which notices only operations that are registered while it
// loads a library. Python has already loaded farandole.core by then, so this small library
// registers the operations.
#include <dlfcn.h>

#include <string>

namespace {

__attribute__((constructor)) void register_ops() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<void*>(&register_ops), &here) == 0) return;
  const std::string path = here.dli_fname;
  const std::string core = path.substr(0, path.rfind('/') + 1) + FARANDOLE_CORE_FILE;
  void* const library = dlopen(core.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return;
  void* const function = dlsym(library, "farandole_register_tensorflow_ops");
  if (function != nullptr) reinterpret_cast<void (*)()>(function)();
}

}  // namespace
