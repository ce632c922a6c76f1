// The glue for JAX: a handler for XLA's foreign function interface (FFI), by which compiled
// programs call the engine. farandole/jax/primitive.py builds these calls.
#pragma once

#include <nanobind/nanobind.h>

namespace farandole::python {

// Adds `job_number()`, and `xla_call`, a capsule with the handler. Its operands are arrays in host
// memory, and then a token; its results are the same number of arrays, and then a token. Each
// operand is one call of the engine, and the calls of one handler form a batch. The attributes are
// the fields of a Submission, name (text), operation, group, reduce_op, root_rank (int64),
// prescale, postscale (float64), and job (int64), which is job_number() at the time of the
// compilation. The calls of a batch have the names name.0, name.1 …; a single call has the name
// itself.
//
// The handler runs in a thread of XLA and never waits. It ends with the error ABORTED if a call
// fails. The text begins with the name of the class of the error, as in farandole/errors.py.
void bind_xla_calls(nanobind::module_& module);

}  // namespace farandole::python
