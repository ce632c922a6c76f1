// Replacements of _exit and abort that write the coverage counts first, because _exit and abort
// skip the exit handlers. With FARANDOLE_COVERAGE, the linker option --wrap redirects all calls of
// _exit and abort to the replacements.
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
