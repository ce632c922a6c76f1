// Turns failures into Python exceptions, whose classes are in farandole/errors.py.
#pragma once

#include "farandole/status.h"

namespace farandole::python {

// Throws nb::python_error if the status is not ok. Needs the GIL.
void raise_if_failed(const Status& status);

// Returns the name of the exception class for a status that is not ok.
const char* exception_class_name(StatusCode code);

// Turns a failed allocation in any call into a FarandoleError.
void bind_errors();

}  // namespace farandole::python
