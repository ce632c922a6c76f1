// For tests: how GoogleTest prints a Status in the message of a failure.
#pragma once

#include <ostream>

#include "farandole/status.h"

namespace farandole {

inline void PrintTo(const Status& status, std::ostream* out) {
  *out << (status.ok() ? "ok" : status.message());
}

}  // namespace farandole
