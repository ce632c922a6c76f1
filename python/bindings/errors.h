// Failures become Python exceptions. The classes live in farandole/errors.py.
#pragma once

#include "farandole/status.h"

namespace farandole::python {

// Throws nb::python_error unless the status is ok. Needs the GIL.
void raise_if_failed(const Status& status);

// From now on a failed allocation anywhere below a call is a FarandoleError, too.
void bind_errors();

}  // namespace farandole::python
