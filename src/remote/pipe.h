// A pipe to or from another process.
#pragma once

#include "base/descriptor.h"
#include "farandole/status.h"

namespace farandole {

struct Pipe {
  Descriptor read_end;
  Descriptor write_end;
};

// Both ends block, and are closed on exec. Errors: kStop if there is no free descriptor.
Result<Pipe> make_pipe();

}  // namespace farandole
