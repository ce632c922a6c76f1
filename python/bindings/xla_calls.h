// The glue for JAX: a handler for XLA's foreign function interface (FFI), by which compiled
// programs call the engine. farandole/jax/primitive.py builds these calls.
#pragma once

#include <nanobind/nanobind.h>

namespace farandole::python {

// Adds `job_number()`, `set_job_of_program()`, and `xla_call`, a capsule with the handler. The
// operands of the handler are arrays in host memory, and then a token. The results of the handler
// are the same number of arrays, and then a token. Each operand is one call of the engine, and the
// calls of one handler form a batch. The attributes are name (text), operation, group, reduce_op
// and root_rank (int64), prescale and postscale (float64), as in a Submission, and program (int64),
// the number of the program for set_job_of_program(). If the handler makes several calls, their
// names are name.0, name.1 …; if it makes one call, the name of the call is the attribute itself.
//
// The handler runs in a thread of XLA, and waits for its calls for 1 ms at most. It ends with the
// error ABORTED if a call fails. The text of the error begins with the name of its exception class
// in farandole/errors.py.
void bind_xla_calls(nanobind::module_& module);

}  // namespace farandole::python
