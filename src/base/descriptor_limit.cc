#include "base/descriptor_limit.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <limits>

#include "base/format.h"

namespace farandole {

namespace {

struct DescriptorCount {
  int open = 0;
  int free = 0;  // counting stops at the needed number
  rlim_t limit = RLIM_INFINITY;
};

// Tries the numbers one by one, because listing /proc/self/fd needs a free descriptor. Free numbers
// follow soon after the open ones, so the loop is short.
DescriptorCount count_descriptors(int needed) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return {.free = needed};
  DescriptorCount count{.limit = limit.rlim_cur};
  const rlim_t end = std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int>::max());
  for (rlim_t number = 0; number < end && count.free < needed; ++number)
    ++(::fcntl(static_cast<int>(number), F_GETFD) < 0 ? count.free : count.open);
  return count;
}

}  // namespace

Status check_descriptors(std::string_view who, int needed) {
  const DescriptorCount count = count_descriptors(needed);
  if (count.free >= needed) return {};
  return Status::stop(format_text(
      "{} needs {} more file descriptors, but has {} open and a limit of {}; raise `ulimit -n` to "
      "at least {}",
      who, needed, count.open, count.limit, count.open + needed));
}

std::string descriptor_advice() {
  constexpr int kDescriptorsToSpare = 8;
  const DescriptorCount count = count_descriptors(kDescriptorsToSpare);
  return format_text(
      "{} file descriptors are open, the limit is {}; raise `ulimit -n` to at least {}", count.open,
      count.limit, count.open + kDescriptorsToSpare);
}

}  // namespace farandole
