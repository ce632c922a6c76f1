// Collective calls: a farandole.core.Call describes a call; farandole.core.Engine submits calls,
// singly or as a batch, polls them, waits for them, and returns their results.
#pragma once

#include <nanobind/nanobind.h>

#include "bound_engine.h"

namespace farandole::python {

void bind_collectives(nanobind::module_& module, nanobind::class_<BoundEngine>& engine);

}  // namespace farandole::python
