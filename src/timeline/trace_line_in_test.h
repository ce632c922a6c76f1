// For tests: a line of a timeline.
#pragma once

#include <string>

#include "base/format.h"

namespace farandole {

// Returns a line with the begin event of a call of this rank.
inline std::string trace_line_of(int rank, const std::string& name = "x") {
  return format_text("{{\"ph\":\"B\",\"ts\":1.000,\"pid\":{},\"tid\":9,\"name\":\"{}\"}},\n", rank,
                     name);
}

}  // namespace farandole
