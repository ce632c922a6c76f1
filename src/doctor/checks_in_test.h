// For tests: runs checks of `farandole doctor` as on a machine that lacks something.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "base/check.h"
#include "doctor/doctor_check.h"

namespace farandole {

// Returns the finding with this name. `before` and `after` run in the process of the check, so
// their changes end with this process.
inline Finding finding_named(
    const std::string& name, const std::vector<Check>& checks,
    const std::function<void()>& before = [] {}, const std::function<void()>& after = [] {}) {
  for (const Check& check : checks) {
    const auto found = std::ranges::find(check.names, name);
    if (found == check.names.end()) continue;
    Check prepared = check;
    prepared.run = [&] {
      before();
      auto findings = check.run();
      after();
      return findings;
    };
    return findings_of(prepared).at(static_cast<std::size_t>(found - check.names.begin()));
  }
  CHECK(false, "there is no check with this name");
}

// From now on, this system call of this process fails, as in a container whose seccomp profile does
// not allow it.
inline void reject_system_call(long number, int error) {
  const auto error_bits = static_cast<unsigned>(error) & SECCOMP_RET_DATA;
  std::array<sock_filter, 4> steps{
      {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1),
       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error_bits),
       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
  const sock_fprog program{steps.size(), steps.data()};
  CHECK(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "the kernel has seccomp");
  CHECK(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "the kernel has seccomp");
}

inline void set_soft_limit(__rlimit_resource resource, rlim_t value) {
  rlimit limit{};
  ::getrlimit(resource, &limit);
  limit.rlim_cur = std::min(value, limit.rlim_max);
  CHECK(::setrlimit(resource, &limit) == 0, "a soft limit can be changed");
}

}  // namespace farandole
