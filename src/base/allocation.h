// Turns a failed allocation into a Status. No exception may leave the engine, neither through the
// public C++ interface nor from a thread of the engine.
#pragma once

#include <new>

#include "base/format.h"
#include "farandole/status.h"

namespace farandole {

// Returns what `call` returns (a Status or a Result), or kStop if an allocation failed in it.
// `error_prefix` returns the beginning of the error text, such as "rank 3 cannot join the job"; it
// is called only after a failed allocation.
template <class ErrorPrefix, class Call>
auto catch_bad_alloc(ErrorPrefix error_prefix, Call call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return Status::stop(format_text(
        "{}: there is no memory left (malloc failed); look at `ulimit -v` and the memory limit of "
        "the container",
        error_prefix()));
  }
}

}  // namespace farandole
