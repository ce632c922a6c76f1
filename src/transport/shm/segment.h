// Segment: a piece of memory that processes of one host can share. A sealed memfd: it has no name,
// cannot change its size, and is gone with the last process that maps it. Its pages come at the
// first touch and do not count against /dev/shm; where a memory cgroup is full then, the kernel
// kills a process, and there is no SIGBUS. To reserve them beforehand would end there just so.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "base/descriptor.h"
#include "farandole/status.h"

namespace farandole {

// What the processor's larger pages have; segments of this size and more begin at a multiple of it.
inline constexpr std::size_t kHugePageBytes = 2 << 20;

// Mapped for reading and writing while it lives. Shared by everybody who holds memory inside it.
class Segment {
 public:
  // At least `bytes` zeroed bytes, in whole pages. `name` is only seen in /proc. Errors: kStop
  // naming the system call, the size and the limit to raise.
  static Result<std::shared_ptr<Segment>> create(const char* name, std::size_t bytes);
  // Maps what create(…, expected_bytes) of another process, or of this one, has made. The
  // descriptor is borrowed and no longer needed afterwards. Errors: kStop when it is something else
  // or not sealed, so that its memory might vanish under us.
  static Result<std::shared_ptr<Segment>> attach(const Descriptor& descriptor,
                                                 std::size_t expected_bytes);
  // Likewise, with the size that it has.
  static Result<std::shared_ptr<Segment>> attach(const Descriptor& descriptor);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  // To be handed to peers; borrowed. Empty after attach() and close_descriptor().
  const Descriptor& descriptor() const { return descriptor_; }
  // The memory stays.
  void close_descriptor() { descriptor_.reset(); }

  // A core dump would read all of it, and so take pages for what was never touched.
  void leave_out_of_core_dumps();
  // Zeroes memory, in whole pages, by giving the pages back to the system.
  void discard(std::byte* begin, std::size_t bytes);
  // From now on these whole pages are this process's own: they keep their addresses and their
  // bytes, and what other mappings of the segment store there later is not seen here, nor is what
  // we store seen there. Other threads may use the memory meanwhile. For good. Needs descriptor().
  // Errors: kStop.
  Status make_private(std::byte* begin, std::size_t bytes);
  // Takes huge pages for those among these untouched bytes that fill some: at a seventh of what
  // small pages cost at their first touch. Where the kernel has none, nothing happens.
  void take_huge_pages(std::byte* begin, std::size_t bytes);

 private:
  friend class SegmentView;
  Segment(std::byte* data, std::size_t size, Descriptor descriptor)
      : data_(data), size_(size), descriptor_(std::move(descriptor)) {}
  static Result<std::size_t> sealed_size(const Descriptor& descriptor);
  static Result<std::shared_ptr<Segment>> map(const Descriptor& descriptor, std::size_t bytes);

  std::byte* data_;
  std::size_t size_;
  Descriptor descriptor_;
};

// Somebody else's segment, mapped for reading only while this lives. Neither copies nor moves.
class SegmentView {
 public:
  // Of a descriptor that may have been opened for reading only. Null when it is no segment, or
  // there is no room for it.
  static std::unique_ptr<SegmentView> attach(const Descriptor& descriptor);
  ~SegmentView();
  SegmentView(const SegmentView&) = delete;
  SegmentView& operator=(const SegmentView&) = delete;

  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  SegmentView(const std::byte* data, std::size_t size) : data_(data), size_(size) {}

  const std::byte* data_;
  std::size_t size_;
};

}  // namespace farandole
