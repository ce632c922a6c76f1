// A failed allocation as a value: exceptions end below the public door, and on no thread of ours.
#pragma once

#include <fmt/format.h>

#include <new>

#include "farandole/status.h"

namespace farandole {

// What `call` returns, a Status or a Result; kStop when an allocation failed meanwhile. `what` is
// asked then, and says for people what came to nothing: "rank 3 cannot join the job".
template <class What, class Call>
auto with_memory(What what, Call call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return Status::stop(fmt::format(
        "{}: there is no memory left (malloc failed); look at `ulimit -v` and the memory limit of "
        "the container",
        what()));
  }
}

}  // namespace farandole
