#include "engine/progress_lock.h"

#include <utility>

#include "base/check.h"

namespace farandole {

bool ProgressLock::try_take() {
  if (!is_free()) return false;
  held_ = true;
  return true;
}

auto ProgressLock::give_way() -> Wake {
  CHECK(held_ && waiters_ > 0, "a caller that waits gives way");
  held_ = false;
  return somebody_is_ahead() ? Wake::kCallers : Wake::kNobody;
}

auto ProgressLock::release(bool has_work) -> Wake {
  CHECK(held_, "who holds the progress lock releases it");
  held_ = false;
  in_background_ = false;
  return next(has_work);
}

auto ProgressLock::end_wait(bool has_work) -> Wake {
  CHECK(waiters_ > 0, "a waiter goes once");
  --waiters_;
  return next(has_work);
}

auto ProgressLock::calls_finished(bool holder_waits) const -> Wake {
  return waiters_ > (holder_waits ? 1 : 0) ? Wake::kCallers : Wake::kNobody;
}

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
  calls_seen_ = calls_;
}

bool ProgressLock::naps_on(bool has_work) {
  return std::exchange(calls_seen_, calls_) != calls_ && !stopping_ && has_work;
}

bool ProgressLock::end_nap(bool has_work) {
  napping_ = false;
  if (!may_be_taken_in_background(has_work)) return false;
  held_ = in_background_ = true;
  return true;
}

bool ProgressLock::is_called_away(bool has_work) const {
  if (somebody_is_ahead()) return true;
  return in_background_ && (waiters_ > 0 || calls_ != calls_seen_ || !has_work);
}

auto ProgressLock::next(bool has_work) const -> Wake {
  if (held_) return Wake::kNobody;
  if (waiters_ > 0 || somebody_is_ahead()) return Wake::kCallers;
  return has_work && !napping_ ? Wake::kProgress : Wake::kNobody;
}

}  // namespace farandole
