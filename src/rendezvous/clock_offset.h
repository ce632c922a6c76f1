// The difference between the clock of this host and the clock of the host that keeps a Store.
#pragma once

#include "base/clock.h"
#include "farandole/status.h"
#include "rendezvous/store.h"

namespace farandole {

struct ClockOffset {
  Duration offset{};  // time on the Store's host = time on this host + offset
  Duration error{};   // the largest possible error of the offset at the time of the measurement
};

// Asks the Store for its time 16 times and uses the answer that came fastest (Cristian's algorithm,
// 1989). Assumes that the Store read its clock halfway between the request and this answer. So the
// error is at most half of the time between the request and this answer. Blocks for 16 round trips.
// Errors: those of Store::clock().
Result<ClockOffset> measure_clock_offset(Store& store);

}  // namespace farandole
