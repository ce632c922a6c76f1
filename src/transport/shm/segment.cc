#include "transport/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/descriptor_limit.h"
#include "base/format.h"
#include "base/try.h"

namespace farandole {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// MADV_COLLAPSE (since Linux 6.1) allocates huge pages during the call, even if shmem_enabled is
// `never`.
constexpr int kMadvCollapse = 25;

std::size_t round_up_to_pages(std::size_t bytes) {
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

Status system_call_error(const char* call, std::size_t bytes, std::string_view remedy,
                         int error = errno) {
  return Status::stop(format_text("shared memory of {} bytes: {} failed: {} ({})", bytes, call,
                                  std::strerror(error), remedy));
}

int resize(int descriptor, std::size_t bytes) {
  int result = 0;
  do {
    result = ::ftruncate(descriptor, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result;
}

// The kernel maps huge pages only if the offset in the file and the address have the same
// alignment.
void* map_aligned(int descriptor, std::size_t bytes) {
  if (bytes < kHugePageBytes)
    return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  const std::size_t reserved_bytes = bytes + kHugePageBytes;
  void* const reservation = ::mmap(nullptr, reserved_bytes, PROT_NONE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reservation == MAP_FAILED) return MAP_FAILED;
  auto* const begin = static_cast<std::byte*>(reservation);
  const std::size_t bytes_before =
      (kHugePageBytes - reinterpret_cast<std::uintptr_t>(begin) % kHugePageBytes) % kHugePageBytes;
  void* const memory = ::mmap(begin + bytes_before, bytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_FIXED, descriptor, 0);
  if (memory == MAP_FAILED) {
    const int error = errno;
    ::munmap(begin, reserved_bytes);
    errno = error;
    return MAP_FAILED;
  }
  if (bytes_before > 0) ::munmap(begin, bytes_before);
  ::munmap(begin + bytes_before + bytes, kHugePageBytes - bytes_before);
  return memory;
}

}  // namespace

Result<std::shared_ptr<Segment>> Segment::map(const Descriptor& descriptor, std::size_t bytes) {
  void* memory = map_aligned(descriptor.get(), bytes);
  if (memory == MAP_FAILED)
    return system_call_error(
        "mmap", bytes,
        "raise the address space limit, `ulimit -v`, or vm.max_map_count; or set "
        "FARANDOLE_HEAP_BYTES for all ranks");
  return std::shared_ptr<Segment>(
      new Segment(static_cast<std::byte*>(memory), bytes, Descriptor()));
}

Result<std::shared_ptr<Segment>> Segment::create(const char* name, std::size_t bytes) {
  const std::size_t size = round_up_to_pages(bytes);
  if (size == 0 || size < bytes)
    return Status::stop(format_text("shared memory of {} bytes cannot be made", bytes));
  auto descriptor =
      Descriptor::above_standard_streams(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.valid()) return system_call_error("memfd_create", size, descriptor_advice());
  if (resize(descriptor.get(), size) != 0)
    return system_call_error("ftruncate", size, "raise the file size limit, `ulimit -f`");
  if (::fcntl(descriptor.get(), F_ADD_SEALS, kSeals) != 0)
    return system_call_error("fcntl(F_ADD_SEALS)", size, "the kernel must offer memfd seals");
  FARANDOLE_TRY_ASSIGN(auto segment, map(descriptor, size));
  segment->descriptor_ = std::move(descriptor);
  return segment;
}

Result<std::size_t> Segment::sealed_size(const Descriptor& descriptor) {
  struct stat attributes{};
  if (::fstat(descriptor.get(), &attributes) != 0)
    return Status::stop(
        format_text("a peer's shared memory: fstat failed: {} (its descriptor must "
                    "be open)",
                    std::strerror(errno)));
  const auto size = static_cast<std::size_t>(attributes.st_size);
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0)
    return system_call_error(
        "fcntl(F_GET_SEALS)", size,
        "the peer's descriptor must be a memfd; do all ranks run one version?");
  if ((seals & kSeals) != kSeals)
    return Status::stop(
        format_text("a peer's shared memory has the seals {:#x} but needs {:#x}: it could shrink "
                    "while we use it",
                    seals, kSeals));
  return size;
}

Result<std::shared_ptr<Segment>> Segment::attach(const Descriptor& descriptor) {
  FARANDOLE_TRY_ASSIGN(const std::size_t size, sealed_size(descriptor));
  return map(descriptor, size);
}

Result<std::shared_ptr<Segment>> Segment::attach(const Descriptor& descriptor,
                                                 std::size_t expected_bytes) {
  FARANDOLE_TRY_ASSIGN(const std::size_t size, sealed_size(descriptor));
  if (size != round_up_to_pages(expected_bytes))
    return Status::stop(
        format_text("a peer's shared memory has {} bytes but {} were expected; do all ranks run "
                    "one version?",
                    size, round_up_to_pages(expected_bytes)));
  return map(descriptor, size);
}

void Segment::exclude_from_core_dumps() { ::madvise(data_, size_, MADV_DONTDUMP); }

void Segment::discard(std::byte* begin, std::size_t bytes) {
  // MADV_REMOVE fails, for example, if the memory is locked.
  if (::madvise(begin, bytes, MADV_REMOVE) != 0) std::memset(begin, 0, bytes);
}

Status Segment::make_private(std::byte* begin, std::size_t bytes) {
  void* const memory = ::mmap(begin, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
                              descriptor_.get(), begin - data_);
  if (memory == MAP_FAILED)
    return system_call_error("mmap", bytes, "vm.overcommit_memory or vm.max_map_count is too low");
  ::madvise(begin, bytes, MADV_DONTDUMP);
  // A page becomes private at the first store. So replace the first byte of each page by its own
  // value with compare-and-swap, which does not lose stores of other threads. (The compiler may
  // turn a fetch_or of 0 into a load.)
  for (std::byte* page = begin; page < begin + bytes; page += round_up_to_pages(1)) {
    const std::atomic_ref<std::byte> first_byte(*page);
    std::byte value = first_byte.load(std::memory_order_relaxed);
    while (!first_byte.compare_exchange_weak(value, value, std::memory_order_relaxed)) continue;
  }
  return {};
}

void Segment::allocate_huge_pages(std::byte* begin, std::size_t bytes) {
  const auto offset = static_cast<std::size_t>(begin - data_);
  const std::size_t begin_offset = (offset + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const std::size_t end_offset = (offset + bytes) / kHugePageBytes * kHugePageBytes;
  if (begin_offset >= end_offset) return;
  // Touch one small page in each huge page first, because the kernel skips ranges that have no
  // pages.
  for (std::size_t page = begin_offset; page < end_offset; page += kHugePageBytes)
    *static_cast<volatile std::byte*>(data_ + page) = std::byte{0};
  ::madvise(data_ + begin_offset, end_offset - begin_offset, kMadvCollapse);
}

Segment::~Segment() { ::munmap(data_, size_); }

std::unique_ptr<SegmentView> SegmentView::attach(const Descriptor& descriptor) {
  const auto size = Segment::sealed_size(descriptor);
  if (!size.ok()) return nullptr;
  void* const memory = ::mmap(nullptr, *size, PROT_READ, MAP_SHARED, descriptor.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  return std::unique_ptr<SegmentView>(new SegmentView(static_cast<std::byte*>(memory), *size));
}

SegmentView::~SegmentView() { ::munmap(const_cast<std::byte*>(data_), size_); }

}  // namespace farandole
