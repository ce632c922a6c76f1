// Python dictionaries from the names of dtypes, devices, operations and reduce ops to their codes.
#pragma once

#include <nanobind/nanobind.h>

namespace farandole::python {

void bind_tables(nanobind::module_& module);

}  // namespace farandole::python
