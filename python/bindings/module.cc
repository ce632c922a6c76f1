// farandole.core: the engine as Python sees it. One file per concept; nothing here knows a
// framework.
#include <nanobind/nanobind.h>

#include "bound_engine.h"
#include "collectives.h"
#include "errors.h"
#include "memory.h"
#include "tables.h"

namespace nb = nanobind;

NB_MODULE(core, module) {
  // Users end their programs with tensors and handles alive; that is no news for them.
  nb::set_leak_warnings(false);
  farandole::python::bind_errors();
  nb::class_<farandole::python::BoundEngine> engine(module, "Engine");
  farandole::python::bind_engine(module, engine);
  farandole::python::bind_collectives(module, engine);
  farandole::python::bind_memory(engine);
  farandole::python::bind_tables(module);
}
