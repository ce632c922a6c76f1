#include "transport/shm/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/descriptor_limit.h"
#include "base/try.h"

namespace farandole {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::size_t whole_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

Status system_says_no(const char* call, std::size_t bytes, std::string_view what_to_do,
                      int error = errno) {
  return Status::stop(fmt::format("shared memory of {} bytes: {} failed: {} ({})", bytes, call,
                                  std::strerror(error), what_to_do));
}

int resize(int descriptor, std::size_t bytes) {
  int result = 0;
  do {
    result = ::ftruncate(descriptor, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result;
}

}  // namespace

Result<std::shared_ptr<Segment>> Segment::map(const Descriptor& descriptor, std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
  if (memory == MAP_FAILED)
    return system_says_no("mmap", bytes,
                          "raise the address space limit, `ulimit -v`, or vm.max_map_count");
  return std::shared_ptr<Segment>(
      new Segment(static_cast<std::byte*>(memory), bytes, Descriptor()));
}

Result<std::shared_ptr<Segment>> Segment::create(const char* name, std::size_t bytes) {
  const std::size_t size = whole_pages(bytes);
  if (size == 0 || size < bytes)
    return Status::stop(fmt::format("shared memory of {} bytes cannot be made", bytes));
  auto descriptor =
      Descriptor::beyond_standard(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.valid()) return system_says_no("memfd_create", size, descriptor_advice());
  if (resize(descriptor.get(), size) != 0)
    return system_says_no("ftruncate", size, "raise the file size limit, `ulimit -f`");
  if (::fcntl(descriptor.get(), F_ADD_SEALS, kSeals) != 0)
    return system_says_no("fcntl(F_ADD_SEALS)", size, "the kernel must offer memfd seals");
  FARANDOLE_TRY_ASSIGN(auto segment, map(descriptor, size));
  segment->descriptor_ = std::move(descriptor);
  return segment;
}

Result<std::shared_ptr<Segment>> Segment::attach(const Descriptor& descriptor,
                                                 std::size_t expected_bytes) {
  const std::size_t size = whole_pages(expected_bytes);
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0)
    return system_says_no("fcntl(F_GET_SEALS)", size,
                          "the peer's descriptor must be a memfd; do all ranks run one version?");
  if ((seals & kSeals) != kSeals)
    return Status::stop(fmt::format(
        "a peer's shared memory has the seals {:#x} but needs {:#x}: it could be cut off under us",
        seals, kSeals));
  struct stat facts{};
  if (::fstat(descriptor.get(), &facts) != 0)
    return system_says_no("fstat", size, "the peer's descriptor must be open");
  if (static_cast<std::size_t>(facts.st_size) != size)
    return Status::stop(
        fmt::format("a peer's shared memory has {} bytes but {} were expected; do all ranks run "
                    "one version?",
                    facts.st_size, size));
  return map(descriptor, size);
}

Segment::~Segment() { ::munmap(data_, size_); }

}  // namespace farandole
