#include "doctor/doctor_kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

#include <cerrno>
#include <string>

#include "doctor/checks_in_test.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

TEST(DoctorKernel, EveryFeatureThatJobsNeedWorksHere) {
  int essential = 0;
  for (const Check& check : kernel_checks()) {
    if (!check.essential) continue;
    ++essential;
    const auto findings = findings_of(check);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].health, Health::kWorks) << findings[0].found;
    EXPECT_NE(findings[0].found, "");
    EXPECT_EQ(findings[0].advice, "");
  }
  EXPECT_EQ(essential, 7);
}

TEST(DoctorKernel, ShowsTheVersionOfTheKernel) {
  utsname name{};
  ASSERT_EQ(::uname(&name), 0);
  EXPECT_THAT(finding_named("kernel", kernel_checks()).found, HasSubstr(name.release));
}

// This machine may lack a feature that jobs do not need. Then the finding says what to do.
TEST(DoctorKernel, AMissingFeatureComesWithAdvice) {
  for (const char* name : {"worker terminals", "memory of others"}) {
    const Finding finding = finding_named(name, kernel_checks());
    EXPECT_EQ(finding.health == Health::kWorks, finding.advice.empty()) << finding.found;
  }
}

struct RejectedSystemCall {
  const char* check;
  long number;
  int error;
  Health health;
  const char* found;   // part of the finding
  const char* advice;  // part of the advice
};

class DoctorKernelTest : public ::testing::TestWithParam<RejectedSystemCall> {};

TEST_P(DoctorKernelTest, ARejectedSystemCallIsNamedWithARemedy) {
  const RejectedSystemCall& call = GetParam();
  const Finding finding = finding_named(call.check, kernel_checks(),
                                        [&] { reject_system_call(call.number, call.error); });
  EXPECT_EQ(finding.health, call.health) << finding.found;
  EXPECT_THAT(finding.found, HasSubstr(call.found));
  EXPECT_THAT(finding.advice, HasSubstr(call.advice));
}

constexpr auto kBroken = Health::kDoesNotWork;

INSTANTIATE_TEST_SUITE_P(
    Calls, DoctorKernelTest,
    ::testing::Values(
        RejectedSystemCall{"kernel", SYS_uname, ENOSYS, kBroken, "uname: Function not implemented",
                           "seccomp"},
        RejectedSystemCall{"process handles", SYS_pidfd_open, ENOSYS, kBroken,
                           "pidfd_open: Function not implemented", "Linux 5.3 or newer"},
        RejectedSystemCall{"process handles", SYS_clone, EAGAIN, kBroken,
                           "fork: Resource temporarily unavailable", "`ulimit -u`"},
        RejectedSystemCall{"process tree", SYS_prctl, EINVAL, kBroken,
                           "PR_SET_CHILD_SUBREAPER: Invalid argument", "seccomp"},
        RejectedSystemCall{"process tree", SYS_clone, EAGAIN, kBroken, "fork: ", "`ulimit -u`"},
        RejectedSystemCall{"events", SYS_signalfd4, ENOSYS, kBroken, "signalfd: ", "seccomp"},
        RejectedSystemCall{"events", SYS_epoll_create1, EMFILE, kBroken, "epoll: ", "`ulimit -n`"},
        RejectedSystemCall{"events", SYS_epoll_ctl, ENOSYS, kBroken, "epoll: ", "seccomp"},
        RejectedSystemCall{"shared memory", SYS_memfd_create, ENOMEM, kBroken,
                           "memfd_create with seals: Cannot allocate memory", "`ulimit -v`"},
        RejectedSystemCall{"wake-ups", SYS_memfd_create, ENFILE, kBroken,
                           "memfd_create and mmap: ", "`ulimit -n`"},
        RejectedSystemCall{"wake-ups", SYS_futex, ENOSYS, kBroken,
                           "futex between two processes: ", "seccomp"},
        RejectedSystemCall{"descriptor passing", SYS_socketpair, EAFNOSUPPORT, kBroken,
                           "socketpair: ", "seccomp"},
        RejectedSystemCall{"descriptor passing", SYS_setsockopt, ENOSYS, kBroken,
                           "SO_PASSCRED: ", "seccomp"},
        RejectedSystemCall{"descriptor passing", SYS_sendmsg, EPERM, kBroken,
                           "sendmsg with SCM_RIGHTS", "seccomp"},
        RejectedSystemCall{"descriptor passing", SYS_recvmsg, EPERM, kBroken,
                           "recvmsg with SCM_RIGHTS", "seccomp"},
        RejectedSystemCall{"worker terminals", SYS_ioctl, EPERM, Health::kLimited,
                           "posix_openpt: Operation not permitted", "mount /dev/pts"},
        RejectedSystemCall{"memory of others", SYS_process_vm_readv, EPERM, kBroken,
                           "process_vm_readv: Operation not permitted; not used yet", "allow"},
        RejectedSystemCall{"memory of others", SYS_pipe2, EMFILE, kBroken,
                           "pipe2: ", "`ulimit -n`"}));

}  // namespace
}  // namespace farandole
