#include "collective/allreduce.h"

namespace farandole {

int count_present(const Entrance& entrance, std::int64_t bytes) {
  int present = 0;
  for (int member = 0; member < entrance.group().members(); ++member) {
    const std::int64_t extent = entrance.extent(member);
    if (extent != bytes && extent != kJoinedExtent + bytes) return 0;
    if (extent == bytes) ++present;
  }
  return present;
}

}  // namespace farandole
