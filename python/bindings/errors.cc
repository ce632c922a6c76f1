#include "errors.h"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace farandole::python {
namespace {

const char* class_of(StatusCode code) {
  switch (code) {
    case StatusCode::kFixCall:
      return "CallError";
    case StatusCode::kRebuildGroup:
      return "GroupLostError";
    default:
      return "FarandoleError";
  }
}

}  // namespace

void raise_if_failed(const Status& status) {
  if (status.ok()) return;
  const nb::object type = nb::module_::import_("farandole.errors").attr(class_of(status.code()));
  PyErr_SetString(type.ptr(), status.message().c_str());
  throw nb::python_error();
}

}  // namespace farandole::python
