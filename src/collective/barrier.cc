#include "collective/barrier.h"

namespace farandole {

Progress Barrier::advance() {
  if (!entrance_.entered()) entrance_.enter(0);
  return entrance_.meet();
}

}  // namespace farandole
