#include "errors.h"

#include <nanobind/nanobind.h>

#include <exception>
#include <new>
#include <string_view>

namespace nb = nanobind;

namespace farandole::python {

const char* exception_class_name(StatusCode code) {
  switch (code) {
    case StatusCode::kFixCall:
      return "CallError";
    case StatusCode::kRebuildGroup:
      return "GroupLostError";
    default:
      return "FarandoleError";
  }
}

namespace {

// Replaces invalid UTF-8. Messages contain names from the user, and a long name may have been cut
// in the middle of a character.
void set_python_error(const char* type_name, std::string_view message) {
  const nb::object type = nb::module_::import_("farandole.errors").attr(type_name);
  const nb::object text = nb::steal(
      PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace"));
  if (text.is_valid()) PyErr_SetObject(type.ptr(), text.ptr());
}

void translate_bad_alloc(const std::exception_ptr& exception, void* /*unused*/) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::bad_alloc&) {
    try {
      set_python_error(
          "FarandoleError",
          "the system gives this process no more memory: use smaller tensors, or fewer "
          "workers on this host");
    } catch (nb::python_error& second_error) {
      second_error.restore();
    }
  }
}

}  // namespace

void raise_if_failed(const Status& status) {
  if (status.ok()) return;
  set_python_error(exception_class_name(status.code()), status.message());
  throw nb::python_error();
}

void bind_errors() { nb::register_exception_translator(&translate_bad_alloc); }

}  // namespace farandole::python
