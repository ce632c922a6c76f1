// The collective calls of farandole.core.Engine: submit, poll, wait, take.
#pragma once

#include <nanobind/nanobind.h>

#include "bound_engine.h"

namespace farandole::python {

void bind_collectives(nanobind::module_& module, nanobind::class_<BoundEngine>& engine);

}  // namespace farandole::python
