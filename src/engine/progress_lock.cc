#include "engine/progress_lock.h"

#include <utility>

#include "base/check.h"

namespace farandole {

bool ProgressLock::begin_claim() {
  ++claims_;
  return held_;
}

void ProgressLock::take_claimed() {
  CHECK(can_be_claimed(), "one thread at a time holds the progress lock");
  --claims_;
  held_ = true;
}

bool ProgressLock::stop() { return !std::exchange(stopping_, true); }

void ProgressLock::begin_nap() {
  napping_ = true;
  calls_at_last_read_ = calls_;
}

bool ProgressLock::continue_nap(bool has_work) {
  return std::exchange(calls_at_last_read_, calls_) != calls_ && !stopping_ && has_work;
}

bool ProgressLock::end_nap(bool has_work) {
  napping_ = false;
  if (!may_be_taken_in_background(has_work)) return false;
  held_ = held_in_background_ = true;
  return true;
}

bool ProgressLock::holder_must_release(bool has_work) const {
  if (is_claimed_or_stopping()) return true;
  return held_in_background_ && (waiters_ > 0 || calls_ != calls_at_last_read_ || !has_work);
}

}  // namespace farandole
