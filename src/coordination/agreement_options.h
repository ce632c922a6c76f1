// Options of a group's agreement.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/time_point.h"

namespace farandole {

struct AgreementOptions {
  // How many signatures of a group may have an id at the same time. If there are more signatures,
  // the least recently used signature loses its id.
  std::size_t names_max = 65536;
  // Submissions of up to this many bytes in total may share a step. If this is 0, each submission
  // has its own step. Must be equal on all members.
  std::int64_t fusion_bytes = 0;
  // How long a planned submission waits for the predicted step before this member raises a replan.
  // Needless raises double the time, up to 16 times this value; a needed raise resets the time.
  Duration grace_time = std::chrono::milliseconds(10);
};

}  // namespace farandole
