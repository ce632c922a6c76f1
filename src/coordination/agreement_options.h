// What a group's agreement is told when it begins.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/time_point.h"

namespace farandole {

struct AgreementOptions {
  // How many names of a group have an id at the same time; the least recent one makes room.
  std::size_t names_max = 65536;
  // Submissions of up to so many bytes together may share a step; 0: every one has its own. The
  // same on all members.
  std::int64_t fusion_bytes = 0;
  // How long a planned submission waits in vain for the predicted step before we raise a replan.
  // Doubled when that proves needless, up to 16 times.
  Duration grace = std::chrono::milliseconds(10);
};

}  // namespace farandole
