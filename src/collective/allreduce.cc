#include "collective/allreduce.h"

namespace farandole {

int count_present(const EntryBarrier& entry_barrier, std::int64_t bytes) {
  int present = 0;
  for (int member = 0; member < entry_barrier.group().members(); ++member) {
    const std::int64_t declared_count = entry_barrier.declared_count(member);
    if (declared_count != bytes && declared_count != kJoinedDeclaredCount + bytes) return 0;
    if (declared_count == bytes) ++present;
  }
  return present;
}

}  // namespace farandole
