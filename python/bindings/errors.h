// A Status that failed becomes a Python exception. The classes live in farandole/errors.py.
#pragma once

#include "farandole/status.h"

namespace farandole::python {

// Throws nb::python_error unless the status is ok. Needs the GIL.
void raise_if_failed(const Status& status);

}  // namespace farandole::python
