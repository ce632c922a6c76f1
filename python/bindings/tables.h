// The tables of dtypes, devices and reduce ops as Python dictionaries from name to code.
#pragma once

#include <nanobind/nanobind.h>

namespace farandole::python {

void bind_tables(nanobind::module_& module);

}  // namespace farandole::python
