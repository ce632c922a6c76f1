#include "collective/allreduce.h"

namespace farandole {

int count_contributing_members(const EntryBarrier& entry_barrier, std::int64_t bytes) {
  int contributing_members = 0;
  for (int member = 0; member < entry_barrier.group().members(); ++member) {
    const std::int64_t declared_count = entry_barrier.declared_count(member);
    if (declared_count != bytes && declared_count != kJoinedDeclaredCount + bytes) return 0;
    if (declared_count == bytes) ++contributing_members;
  }
  return contributing_members;
}

}  // namespace farandole
