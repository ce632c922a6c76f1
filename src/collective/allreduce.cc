#include "collective/allreduce.h"

namespace farandole {

bool extents_fit(const Entrance& entrance, std::int64_t bytes) {
  bool somebody_brings = false;
  for (int member = 0; member < entrance.group().members(); ++member) {
    const std::int64_t extent = entrance.extent(member);
    if (extent != bytes && extent != kJoinedExtent + bytes) return false;
    somebody_brings = somebody_brings || extent == bytes;
  }
  return somebody_brings;
}

}  // namespace farandole
