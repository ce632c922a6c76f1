// Collective calls: farandole.core.Call says what to do, farandole.core.Engine submits, polls,
// waits and takes, one call or a batch.
#pragma once

#include <nanobind/nanobind.h>

#include "bound_engine.h"

namespace farandole::python {

void bind_collectives(nanobind::module_& module, nanobind::class_<BoundEngine>& engine);

}  // namespace farandole::python
