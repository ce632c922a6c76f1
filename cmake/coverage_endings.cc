// Linked in the coverage preset only, in the place of _exit and abort (--wrap): they end a process
// past the exit handlers, so the counts of its lines are written here first.
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
