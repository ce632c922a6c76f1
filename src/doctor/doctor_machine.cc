#include "doctor/doctor_machine.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include "base/cores.h"
#include "base/descriptor.h"
#include "base/format.h"
#include "base/knobs.h"
#include "base/system_files.h"
#include "launcher/default_heap.h"
#include "launcher/descriptors_needed.h"
#include "launcher/job_options.h"
#include "network/tcp/sealing_speed.h"
#include "workers/core_binding.h"
#include "workers/core_topology.h"
#include "workers/worker_environment.h"

namespace farandole {
namespace {

constexpr std::int64_t kKiB = 1024;
constexpr std::int64_t kMiB = 1024 * kKiB;
constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

std::string size_text(std::int64_t bytes) {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  if (bytes >= kGiB)
    return format_text("{:.1f} GiB", static_cast<double>(bytes) / static_cast<double>(kGiB));
  return format_text("{} {}", bytes < kKiB * kKiB ? bytes / kKiB : bytes / (kKiB * kKiB),
                     bytes < kKiB * kKiB ? "KiB" : "MiB");
}

std::string limit_text(std::int64_t limit) {
  return limit == kNoLimit ? "unlimited" : std::to_string(limit);
}

std::int64_t soft_limit(rlimit limit) {
  return limit.rlim_cur == RLIM_INFINITY ? kNoLimit : static_cast<std::int64_t>(limit.rlim_cur);
}

std::int64_t soft_limit_of(__rlimit_resource resource) {
  rlimit limit{};
  return ::getrlimit(resource, &limit) == 0 ? soft_limit(limit) : kNoLimit;
}

std::int64_t hard_limit(rlimit limit) {
  return limit.rlim_max == RLIM_INFINITY ? kNoLimit : static_cast<std::int64_t>(limit.rlim_max);
}

Finding check_cores() {
  const long core_count = ::sysconf(_SC_NPROCESSORS_ONLN);
  const int usable = usable_cores();
  const auto affinity = static_cast<int>(usable_hardware_threads().size());
  const std::string found = format_text("{} of {} usable", usable, core_count);
  if (usable >= core_count) return {Health::kWorks, found, ""};
  if (usable < affinity)
    return {Health::kLimited, found + ": the cpu quota of the control group",
            "more workers than usable cores slow each other down; raise the container's quota"};
  return {Health::kLimited, found + ": the affinity of this process",
          "more workers than usable cores slow each other down; look at `taskset -p $$`"};
}

Finding check_binding() { return {Health::kWorks, binding_preview(own_cores()), ""}; }

Finding check_memory() {
  const std::string meminfo = file_text("/proc/meminfo").value_or("");
  const auto total = number_after(meminfo, "MemTotal");
  const auto available = number_after(meminfo, "MemAvailable");
  if (!total || !available)
    return {Health::kLimited, "/proc/meminfo cannot be read", "mount /proc"};
  const std::string found = format_text("{} in the machine, {} available", size_text(*total * kKiB),
                                        size_text(*available * kKiB));
  const auto memory_limit = smallest_memory_limit();
  if (!memory_limit || memory_limit->limit >= *total * kKiB)
    return {Health::kWorks, found + "; no limit of a control group", ""};
  return {Health::kLimited,
          format_text("{}; the control group may use {} and uses {}", found,
                      size_text(memory_limit->limit), size_text(memory_limit->used)),
          format_text("if it needs more, the kernel kills workers; the limit is in {}",
                      memory_limit->path)};
}

Finding check_shared_memory_folder() {
  struct statvfs facts{};
  if (::statvfs("/dev/shm", &facts) != 0)
    return {Health::kLimited, format_text("{}; Farandole does not need it", std::strerror(errno)),
            "PyTorch's DataLoader with workers needs it: mount a tmpfs there"};
  const auto block = static_cast<std::int64_t>(facts.f_frsize);
  const std::int64_t size = static_cast<std::int64_t>(facts.f_blocks) * block;
  const std::int64_t free_bytes = static_cast<std::int64_t>(facts.f_bavail) * block;
  const std::string found = format_text("{}, {} free; Farandole does not need it", size_text(size),
                                        size_text(free_bytes));
  if (free_bytes >= std::int64_t{1} << 30) return {Health::kWorks, found, ""};
  return {Health::kLimited, found,
          "PyTorch's DataLoader with workers may need more: `docker run --shm-size=8g`"};
}

// Returns the word in brackets, such as "madvise" from "always [madvise] never".
std::string chosen_word(const std::string& text) {
  const auto open = text.find('[');
  const auto close = text.find(']', open);
  return close == std::string::npos ? "none" : text.substr(open + 1, close - open - 1);
}

constexpr std::size_t kHugePageBytes = 2 * kMiB;

// Whether the kernel gives huge pages to shared memory. Requests a huge page in the same way as the
// engine: touches a small page and then calls MADV_COLLAPSE, which ignores shmem_enabled unless
// shmem_enabled is `deny`.
bool shared_memory_gets_huge_pages() {
  constexpr int kMadvCollapse = 25;  // MADV_COLLAPSE, since Linux 6.1
  const Descriptor descriptor(::memfd_create("farandole-doctor", MFD_CLOEXEC));
  if (!descriptor.valid() || ::ftruncate(descriptor.get(), kHugePageBytes) != 0) return false;
  void* const reserved =
      ::mmap(nullptr, 2 * kHugePageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return false;
  auto* const begin = static_cast<char*>(reserved);
  char* const aligned = begin + -reinterpret_cast<std::uintptr_t>(begin) % kHugePageBytes;
  bool works = ::mmap(aligned, kHugePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                      descriptor.get(), 0) != MAP_FAILED;
  if (works) {
    *static_cast<volatile char*>(aligned) = 1;
    works = ::madvise(aligned, kHugePageBytes, kMadvCollapse) == 0;
  }
  ::munmap(begin, 2 * kHugePageBytes);
  return works;
}

Finding check_huge_pages() {
  if (soft_limit_of(RLIMIT_FSIZE) < static_cast<std::int64_t>(kHugePageBytes))
    return {Health::kLimited, "cannot be tried, because `ulimit -f` is below 2 MiB", "raise it"};
  const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
  const bool works = shared_memory_gets_huge_pages();
  const std::string found = format_text(
      "shared memory {} (shmem_enabled: {}); transparent: {}; explicit: {} free",
      works ? "gets them on request" : "gets none",
      chosen_word(file_text(folder + "shmem_enabled").value_or("")),
      chosen_word(file_text(folder + "enabled").value_or("")),
      number_after(file_text("/proc/meminfo").value_or(""), "HugePages_Free").value_or(0));
  if (works) return {Health::kWorks, found, ""};
  return {
      Health::kLimited, found,
      "calls with large tensors take longer; use Linux 6.1 or newer, and set shmem_enabled to a "
      "value other than `deny`"};
}

Finding check_freed_memory() {
  const std::int64_t bytes = kept_bytes_max_of_all_workers();
  if (kept_memory_variable(static_cast<std::size_t>(bytes), inherited_environment()))
    return {Health::kWorks,
            format_text("the workers of a job keep up to {} for new tensors", size_text(bytes)),
            ""};
  if (kept_memory_variable(static_cast<std::size_t>(bytes), {}))
    return {Health::kWorks, "as GLIBC_TUNABLES or MALLOC_… in the environment say", ""};
  return {Health::kLimited, "workers give the memory of a large tensor back to the system at once",
          "training steps with large tensors take longer; glibc 2.35 or newer is needed"};
}

Finding finding_on_capacity(std::int64_t workers, const std::string& found,
                            const std::string& advice) {
  const std::string text = format_text("{}: enough for about {} {}", found, workers,
                                       workers == 1 ? "worker" : "workers");
  if (workers < 1) return {Health::kDoesNotWork, text, advice};
  return {workers < usable_cores() ? Health::kLimited : Health::kWorks, text,
          workers < usable_cores() ? advice : ""};
}

// The finding for the limit of `ulimit -v` or `ulimit -f` of this process.
Finding finding_on_byte_limit(__rlimit_resource resource, const std::string& name,
                              const std::string& advice) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return {Health::kLimited, std::strerror(errno), ""};
  const std::int64_t soft = soft_limit(limit);
  if (soft == kNoLimit) return {Health::kWorks, "unlimited (" + name + ")", ""};
  return {Health::kLimited, format_text("{} ({})", size_text(soft), name), advice};
}

Finding check_address_space() {
  return finding_on_byte_limit(
      RLIMIT_AS, "`ulimit -v`",
      "every rank maps the heaps of all ranks, and frameworks map a lot of memory: raise it");
}

Status read_own_knobs(Knobs& knobs) {
  return read_knobs(knobs, [](const char* name) -> const char* { return std::getenv(name); });
}

// The largest files of a job are the heap of each rank, and the memory that the ranks of a host
// share (collective/group_memory.h): about 2 MiB, plus 4 MiB for each rank.
Finding check_file_size() {
  Finding finding = finding_on_byte_limit(RLIMIT_FSIZE, "`ulimit -f`",
                                          "this limit also holds for shared memory: raise it");
  const std::int64_t limit = soft_limit_of(RLIMIT_FSIZE);
  if (limit == kNoLimit) return finding;
  Knobs knobs;
  const bool has_knobs = read_own_knobs(knobs).ok();  // the check "shared heap" reports an error
  if (has_knobs && static_cast<std::int64_t>(knobs.heap_bytes) > limit)
    return {Health::kDoesNotWork,
            format_text("{}: less than FARANDOLE_HEAP_BYTES, {}", finding.found,
                        size_text(static_cast<std::int64_t>(knobs.heap_bytes))),
            "raise it, or choose a smaller heap"};
  const auto workers = std::clamp<std::int64_t>((limit - 2 * kMiB) / (4 * kMiB), 0, kWorkersMax);
  finding.found +=
      format_text(": enough for about {} {}", workers, workers == 1 ? "worker" : "workers");
  if (workers < 1) finding.health = Health::kDoesNotWork;
  return finding;
}

// Reports the size that the heap of each rank has in a job with one rank per core.
Finding check_shared_heap() {
  const int ranks = usable_cores();
  Knobs knobs;
  const Status status = read_own_knobs(knobs);
  if (!status.ok()) return {Health::kLimited, status.message(), ""};
  const auto chosen_bytes = static_cast<std::int64_t>(knobs.heap_bytes);
  const std::int64_t heap_bytes = chosen_bytes != 0 ? chosen_bytes : default_heap_bytes(ranks);
  const std::string found = format_text(
      "{} for each rank{}; only what is used costs memory", size_text(heap_bytes),
      chosen_bytes != 0 ? " (FARANDOLE_HEAP_BYTES)" : format_text(", if there are {}", ranks));
  const auto memory = number_after(file_text("/proc/meminfo").value_or(""), "MemTotal");
  if (chosen_bytes != 0 || !memory || heap_bytes >= *memory * kKiB)
    return {Health::kWorks, found, ""};
  return {Health::kLimited, found,
          "tensors that have no room there are copied: raise `ulimit -v` and `ulimit -f`"};
}

// The launcher raises its soft limit to the hard limit and needs several descriptors for each
// worker. A worker keeps the soft limit. While a worker starts, it needs two descriptors for each
// worker of the host.
Finding check_open_files() {
  constexpr std::int64_t kOwnDescriptorsOfWorker = 28;
  constexpr std::int64_t kDescriptorsPerPeer = 2;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return {Health::kLimited, std::strerror(errno), ""};
  const std::int64_t soft = soft_limit(limit);
  const std::int64_t hard = hard_limit(limit);
  const std::int64_t workers =
      std::min((hard - kDescriptorsAtStart - descriptors_needed(0)) / kDescriptorsPerWorker,
               (soft - kOwnDescriptorsOfWorker) / kDescriptorsPerPeer);
  return finding_on_capacity(
      std::clamp<std::int64_t>(workers, 0, kWorkersMax),
      format_text("descriptors: soft limit {}, hard limit {}", limit_text(soft), limit_text(hard)),
      "raise them: `ulimit -n 65536`, or in /etc/security/limits.conf");
}

// Counts the threads of our user, because RLIMIT_NPROC limits this number.
std::int64_t threads_of_user() {
  std::int64_t threads = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto status = file_text(entry.path().string() + "/status");
    if (!status || number_after(*status, "Uid") != static_cast<std::int64_t>(::getuid())) continue;
    threads += number_after(*status, "Threads").value_or(0);
  }
  return threads;
}

Finding check_processes() {
  constexpr std::int64_t kThreadsPerWorker = 16;
  std::pair<std::int64_t, std::string> lowest_limit(
      number_in_file("/proc/sys/kernel/threads-max").value_or(kNoLimit),
      "threads-max of the machine");
  rlimit limit{};
  // RLIMIT_NPROC does not limit root.
  if (::geteuid() != 0 && ::getrlimit(RLIMIT_NPROC, &limit) == 0 && soft_limit(limit) != kNoLimit)
    lowest_limit = std::min(lowest_limit, {soft_limit(limit) - threads_of_user(), "`ulimit -u`"});
  const auto pids_limit = smallest_limit({.controller = "pids",
                                          .limit_file = "pids.max",
                                          .used_file = "pids.current",
                                          .old_limit_file = "pids.max",
                                          .old_used_file = "pids.current"});
  if (pids_limit)
    lowest_limit = std::min(lowest_limit, {pids_limit->limit - pids_limit->used, pids_limit->path});
  const std::int64_t free_places = std::max<std::int64_t>(0, lowest_limit.first);
  return finding_on_capacity(
      std::min<std::int64_t>(free_places / kThreadsPerWorker, kWorkersMax),
      format_text("room for {} processes and threads by {}", free_places, lowest_limit.second),
      "raise `ulimit -u`, or the pids limit of the container");
}

Finding check_locked_memory() {
  alignas(4096) static std::array<char, 64 * 1024> buffer{};
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::int64_t soft = soft_limit(limit);
  const std::string found = format_text(
      "limit {}; not used yet", soft == kNoLimit ? std::string("unlimited") : size_text(soft));
  if (::mlock(buffer.data(), buffer.size()) == 0) return {Health::kWorks, found, ""};
  return {Health::kLimited, format_text("{}; mlock of 64 KiB: {}", found, std::strerror(errno)),
          "raise `ulimit -l`"};
}

Finding check_sealing() {
  return finding_on_sealing([] { return measure_sealing_speed(std::chrono::milliseconds(10)); },
                            file_text("/proc/cpuinfo").value_or(""));
}

}  // namespace

Finding finding_on_sealing(const std::function<Result<double>()>& measure,
                           const std::string& processor) {
  // A processor with instructions for AES seals several times more bytes per second than this.
  constexpr double kFastBytesPerSecond = 1e9;
  constexpr int kMeasurements = 10;
  double best_speed = 0;
  for (int i = 0; i < kMeasurements; ++i) {
    const auto speed = measure();
    if (!speed.ok()) return {Health::kDoesNotWork, speed.status().message(), ""};
    best_speed = std::max(best_speed, *speed);
  }
  const std::string found =
      format_text("AES-128-GCM: a core seals {:.1f} GB/s ({:.0f} Gb/s) for other hosts",
                  best_speed / 1e9, best_speed * 8 / 1e9);
  if (best_speed >= kFastBytesPerSecond) return {Health::kWorks, found, ""};
  const bool has_aes = processor.find(" aes ") != std::string::npos;
  return {Health::kLimited, found,
          has_aes ? "the processor has instructions for AES, so the machine seems busy: try again "
                    "when it is idle"
                  : "a job over several hosts is slow here: use a processor with instructions for "
                    "AES"};
}

std::vector<Check> machine_checks() {
  return {single_check("cores", false, check_cores),
          single_check("binding", false, check_binding),
          single_check("memory", false, check_memory),
          single_check("/dev/shm", false, check_shared_memory_folder),
          single_check("huge pages", false, check_huge_pages),
          single_check("freed memory", false, check_freed_memory),
          single_check("open files", true, check_open_files),
          single_check("processes", true, check_processes),
          single_check("locked memory", false, check_locked_memory),
          single_check("address space", false, check_address_space),
          single_check("file size", true, check_file_size),
          single_check("shared heap", false, check_shared_heap),
          single_check("sealing", false, check_sealing)};
}

}  // namespace farandole
