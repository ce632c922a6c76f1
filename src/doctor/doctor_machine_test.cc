#include "doctor/doctor_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/cores.h"
#include "base/format.h"
#include "base/system_files.h"
#include "doctor/checks_in_test.h"

namespace farandole {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Finding machine_finding(
    const std::string& name, const std::function<void()>& before = [] {},
    const std::function<void()>& after = [] {}) {
  return finding_named(name, machine_checks(), before, after);
}

TEST(DoctorMachine, EveryCheckFindsSomething) {
  for (const Check& check : machine_checks()) {
    const auto findings = findings_of(check);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_NE(findings[0].found, "");
    if (findings[0].health == Health::kWorks) {
      EXPECT_EQ(findings[0].advice, "");
    }
    EXPECT_TRUE(findings[0].health == Health::kWorks || findings[0].health == Health::kLimited)
        << check.names.at(0) << ": " << findings[0].found;
  }
}

TEST(DoctorMachine, TheAffinityLimitsTheCores) {
  const long present = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (usable_cores() < 2) GTEST_SKIP() << "there is only one usable core";
  const Finding finding = machine_finding("cores", [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(usable_hardware_threads().front(), &set);
    ::sched_setaffinity(0, sizeof(set), &set);
  });
  EXPECT_EQ(finding.health, Health::kLimited);
  EXPECT_EQ(finding.found, format_text("1 of {} usable: the affinity of this process", present));
  EXPECT_THAT(finding.advice, HasSubstr("taskset"));
}

TEST(DoctorMachine, MemoryIsWhatTheKernelSays) {
  const auto kib = number_after(file_text("/proc/meminfo").value_or(""), "MemTotal");
  ASSERT_TRUE(kib.has_value());
  const double gib = static_cast<double>(*kib) / (1 << 20);
  EXPECT_THAT(machine_finding("memory").found,
              StartsWith(format_text("{:.1f} GiB in the machine, ", gib)));
}

TEST(DoctorMachine, WithoutProcTheMemoryIsUnknown) {
  const Finding finding = machine_finding("memory", [] { reject_system_call(SYS_openat, ENOENT); });
  EXPECT_EQ(finding.health, Health::kLimited);
  EXPECT_EQ(finding.found, "/proc/meminfo cannot be read");
  EXPECT_EQ(finding.advice, "mount /proc");
}

TEST(DoctorMachine, AMissingFolderForSharedMemoryIsNotFatal) {
  const Finding finding =
      machine_finding("/dev/shm", [] { reject_system_call(SYS_statfs, ENOENT); });
  EXPECT_EQ(finding.health, Health::kLimited);
  EXPECT_EQ(finding.found, "No such file or directory; Farandole does not need it");
  EXPECT_THAT(finding.advice, HasSubstr("DataLoader"));
}

TEST(DoctorMachine, AKernelWithoutHugePagesOnRequestIsNotFatal) {
  const Finding finding =
      machine_finding("huge pages", [] { reject_system_call(SYS_madvise, EINVAL); });
  EXPECT_EQ(finding.health, Health::kLimited);
  EXPECT_THAT(finding.found, StartsWith("shared memory gets none (shmem_enabled: "));
  EXPECT_THAT(finding.advice, HasSubstr("Linux 6.1 or newer"));
}

TEST(DoctorMachine, ASettingOfTheUserForFreedMemoryIsKept) {
  const Finding finding =
      machine_finding("freed memory", [] { ::setenv("MALLOC_TRIM_THRESHOLD_", "1", 1); });
  EXPECT_EQ(finding.health, Health::kWorks);
  EXPECT_THAT(finding.found, HasSubstr("in the environment say"));
}

TEST(DoctorMachine, AFewDescriptorsAreEnoughForOneWorker) {
  const auto finding_with_limit = [](rlim_t limit) {
    return machine_finding("open files", [limit] {
      const rlimit both{limit, limit};
      ::setrlimit(RLIMIT_NOFILE, &both);
    });
  };
  const Finding few_files = finding_with_limit(34);
  EXPECT_EQ(few_files.found,
            "descriptors: soft limit 34, hard limit 34: enough for about 1 worker");
  EXPECT_EQ(few_files.health, usable_cores() > 1 ? Health::kLimited : Health::kWorks);
  const Finding too_few_files = finding_with_limit(20);
  EXPECT_EQ(too_few_files.found,
            "descriptors: soft limit 20, hard limit 20: enough for about 0 workers");
  EXPECT_EQ(too_few_files.health, Health::kDoesNotWork);
  EXPECT_THAT(too_few_files.advice, HasSubstr("ulimit -n"));
}

TEST(DoctorMachine, RunningProcessesCountForTheProcessLimit) {
  const bool is_root = ::geteuid() == 0;  // the limit does not hold for root
  const Finding finding = machine_finding(
      "processes",
      [is_root] {
        set_soft_limit(RLIMIT_NPROC, 1);
        if (is_root) CHECK(::seteuid(65534) == 0, "root can become another user");
      },
      [is_root] {
        if (is_root) CHECK(::seteuid(0) == 0, "it can become root again");
      });
  EXPECT_EQ(finding.health, Health::kDoesNotWork);
  EXPECT_EQ(finding.found,
            "room for 0 processes and threads by `ulimit -u`: enough for about 0 workers");
  EXPECT_THAT(finding.advice, HasSubstr("raise `ulimit -u`"));
}

TEST(DoctorMachine, ALimitOfLockedMemoryIsShown) {
  const Finding finding =
      machine_finding("locked memory", [] { set_soft_limit(RLIMIT_MEMLOCK, 64 << 10); });
  EXPECT_THAT(finding.found, StartsWith("limit 64 KiB; not used yet"));
}

TEST(DoctorMachine, ByteLimitsAreShownWithARemedy) {
  const auto raised = [](const Finding& finding) {
    return finding.health == Health::kLimited && finding.advice.ends_with(": raise it");
  };
  // A program with the address sanitizer needs a lot of address space.
  const Finding space =
      machine_finding("address space", [] { set_soft_limit(RLIMIT_AS, rlim_t{100} << 40); });
  EXPECT_EQ(space.found, "102400.0 GiB (`ulimit -v`)");
  EXPECT_TRUE(raised(space)) << space.advice;
  const Finding size =
      machine_finding("file size", [] { set_soft_limit(RLIMIT_FSIZE, 256 << 20); });
  EXPECT_EQ(size.found, "256 MiB (`ulimit -f`): enough for about 63 workers");
  EXPECT_TRUE(raised(size)) << size.advice;
}

TEST(DoctorMachine, WithSmallFilesNoJobCanStart) {
  const auto finding_with_limit = [](const std::string& name, rlim_t limit, const char* heap) {
    return machine_finding(name, [limit, heap] {
      ::setenv("FARANDOLE_HEAP_BYTES", heap, 1);
      set_soft_limit(RLIMIT_FSIZE, limit);
    });
  };
  const Finding enough_for_one = finding_with_limit("file size", 6 << 20, "");
  EXPECT_EQ(enough_for_one.health, Health::kLimited);
  EXPECT_EQ(enough_for_one.found, "6 MiB (`ulimit -f`): enough for about 1 worker");
  const Finding too_small = finding_with_limit("file size", 10 << 10, "");
  EXPECT_EQ(too_small.health, Health::kDoesNotWork);
  EXPECT_EQ(too_small.found, "10 KiB (`ulimit -f`): enough for about 0 workers");
  EXPECT_THAT(too_small.advice, HasSubstr("raise it"));
  const Finding heap = finding_with_limit("file size", 64 << 20, "67108865");
  EXPECT_EQ(heap.health, Health::kDoesNotWork);
  EXPECT_EQ(heap.found, "64 MiB (`ulimit -f`): less than FARANDOLE_HEAP_BYTES, 64 MiB");
  EXPECT_THAT(heap.advice, HasSubstr("smaller heap"));
  const Finding huge_pages = finding_with_limit("huge pages", 10 << 10, "");
  EXPECT_EQ(huge_pages.health, Health::kLimited);
  EXPECT_EQ(huge_pages.found, "cannot be tried, because `ulimit -f` is below 2 MiB");
}

TEST(DoctorMachine, ALimitOfFileSizeMakesTheHeapSmaller) {
  const Finding finding = machine_finding("shared heap", [] {
    ::unsetenv("FARANDOLE_HEAP_BYTES");
    set_soft_limit(RLIMIT_FSIZE, 256 << 20);
  });
  EXPECT_EQ(finding.health, Health::kLimited);
  EXPECT_THAT(finding.found, AllOf(HasSubstr("MiB for each rank, if there are "),
                                   HasSubstr("; only what is used costs memory")));
  EXPECT_THAT(finding.advice, HasSubstr("raise `ulimit -v` and `ulimit -f`"));
}

TEST(DoctorMachine, AChosenHeapIsShown) {
  const Finding finding =
      machine_finding("shared heap", [] { ::setenv("FARANDOLE_HEAP_BYTES", "67108864", 1); });
  EXPECT_EQ(finding.health, Health::kWorks);
  EXPECT_EQ(finding.found,
            "64 MiB for each rank (FARANDOLE_HEAP_BYTES); only what is used costs memory");
}

TEST(DoctorMachine, AnInvalidHeapSizeIsExplained) {
  const Finding finding =
      machine_finding("shared heap", [] { ::setenv("FARANDOLE_HEAP_BYTES", "a lot", 1); });
  EXPECT_EQ(finding.health, Health::kLimited);
  EXPECT_THAT(finding.found, AllOf(HasSubstr("FARANDOLE_HEAP_BYTES"), HasSubstr("a lot")));
}

TEST(DoctorMachine, SealingIsMeasured) {
  EXPECT_THAT(machine_finding("sealing").found, StartsWith("AES-128-GCM: a core seals "));
}

TEST(DoctorMachine, TheFastestMeasurementOfSealingCounts) {
  int measurements = 0;
  const Finding finding = finding_on_sealing(
      [&measurements] { return Result<double>(++measurements == 3 ? 2e9 : 1e8); }, "");
  EXPECT_EQ(finding.health, Health::kWorks);
  EXPECT_EQ(finding.found, "AES-128-GCM: a core seals 2.0 GB/s (16 Gb/s) for other hosts");
}

TEST(DoctorMachine, SlowSealingIsExplainedByTheProcessorOrByOtherLoad) {
  const auto advice = [](const std::string& processor) {
    const Finding slow_finding = finding_on_sealing([] { return Result<double>(1e8); }, processor);
    EXPECT_EQ(slow_finding.health, Health::kLimited);
    return slow_finding.advice;
  };
  EXPECT_THAT(advice("flags\t\t: fpu aes xsave\n"), HasSubstr("the machine seems busy"));
  EXPECT_THAT(advice("Features\t: fp asimd aes pmull\n"), HasSubstr("the machine seems busy"));
  EXPECT_THAT(advice("flags\t\t: fpu vaes xsave\n"), HasSubstr("use a processor with"));
}

}  // namespace
}  // namespace farandole
