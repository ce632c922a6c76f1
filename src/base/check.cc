#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace farandole {

void check_failed(const char* file, int line, const char* condition, const char* why) noexcept {
  std::fprintf(stderr,
               "farandole: a bug in the engine at %s:%d: `%s` does not hold (%s). Please report "
               "this line.\n",
               file, line, condition, why);
  std::abort();
}

}  // namespace farandole
