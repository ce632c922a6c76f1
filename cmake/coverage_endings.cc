// Writes the coverage counts before a process ends by _exit or abort, which skip the exit handlers.
// Linked in the place of these functions (--wrap), with FARANDOLE_COVERAGE only.
extern "C" {

#include <gcov.h>

[[noreturn]] void __real__exit(int status);  // NOLINT(bugprone-reserved-identifier)
[[noreturn]] void __real_abort();            // NOLINT(bugprone-reserved-identifier)

[[noreturn]] void __wrap__exit(int status) {  // NOLINT(bugprone-reserved-identifier)
  __gcov_dump();
  __real__exit(status);
}

[[noreturn]] void __wrap_abort() {  // NOLINT(bugprone-reserved-identifier)
  __gcov_dump();
  __real_abort();
}

}  // extern "C"
