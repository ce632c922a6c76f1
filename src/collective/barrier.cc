#include "collective/barrier.h"

namespace farandole {

Progress Barrier::advance() {
  if (!entrance_.entered()) {
    if (!entrance_.may_enter()) return Progress::kPending;
    entrance_.enter(0);
  }
  const Progress met = entrance_.meet();
  if (met == Progress::kDone) entrance_.board().finish();
  return met;
}

}  // namespace farandole
