#include "collective/barrier.h"

namespace farandole {

Progress Barrier::advance() {
  if (!entry_barrier_.has_entered()) entry_barrier_.enter(0);
  return entry_barrier_.check_arrivals();
}

}  // namespace farandole
