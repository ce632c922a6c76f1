// For tests of a process that has reached its limit of file descriptors.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>

#include "base/check.h"
#include "base/descriptor.h"

namespace farandole {

// While an object of this class exists, this process cannot open any file, because every descriptor
// below the limit is in use.
class NoFreeDescriptors {
 public:
  NoFreeDescriptors() {
    CHECK(::getrlimit(RLIMIT_NOFILE, &original_limit_) == 0, "a test needs to know its limit");
    const Descriptor lowest_free(::fcntl(0, F_DUPFD_CLOEXEC, 0));
    set(static_cast<rlim_t>(lowest_free.get()));
  }
  ~NoFreeDescriptors() { set(original_limit_.rlim_cur); }
  NoFreeDescriptors(const NoFreeDescriptors&) = delete;
  NoFreeDescriptors& operator=(const NoFreeDescriptors&) = delete;

 private:
  void set(rlim_t limit) const {
    const rlimit changed{limit, original_limit_.rlim_max};
    CHECK(::setrlimit(RLIMIT_NOFILE, &changed) == 0, "a soft limit can be changed");
  }

  rlimit original_limit_{};
};

}  // namespace farandole
