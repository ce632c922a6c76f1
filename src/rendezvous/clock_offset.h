// How the clocks of two hosts differ: that of this host, and that of the host that keeps a Store.
#pragma once

#include "base/clock.h"
#include "farandole/status.h"
#include "rendezvous/store.h"

namespace farandole {

struct ClockOffset {
  Duration offset{};  // a time there = a time here + offset
  Duration error{};   // the largest possible error of the offset, when it was measured
};

// Asks the Store for its time several times. The fastest answer counts: its time is compared with
// the middle between question and answer, so the error is at most half the time between them
// (Cristian's algorithm, 1989). Blocks for as many round trips. Errors: those of Store::clock().
Result<ClockOffset> measure_clock_offset(Store& store);

}  // namespace farandole
