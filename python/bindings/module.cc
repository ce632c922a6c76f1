// farandole.core: the engine for Python. Each bind_ function adds one part of the module.
#include <nanobind/nanobind.h>

#include "bound_engine.h"
#include "collectives.h"
#include "errors.h"
#include "memory.h"
#include "tables.h"
#include "tensor_reader.h"
#include "xla_calls.h"

namespace nb = nanobind;

NB_MODULE(core, module) {
  // Turn off nanobind's warnings about leaks, because a program may end with live tensors and
  // handles.
  nb::set_leak_warnings(false);
  farandole::python::bind_errors();
  nb::class_<farandole::python::BoundEngine> engine(module, "Engine");
  farandole::python::bind_engine(module, engine);
  farandole::python::bind_collectives(module, engine);
  farandole::python::bind_memory(engine);
  farandole::python::bind_tables(module);
  farandole::python::bind_tensor_reader(module);
  farandole::python::bind_xla_calls(module);
}
