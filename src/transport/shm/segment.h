// Segment: memory that processes of one host can share. It is a sealed memfd: it has no file name,
// its size cannot change, and it is freed with the last process that maps it. Its pages are
// allocated at the first touch and do not count against the size of /dev/shm. If a memory cgroup is
// full at a touch, the kernel kills a process; there is no SIGBUS. Reserving the pages beforehand
// would not change that.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "base/descriptor.h"
#include "farandole/status.h"

namespace farandole {

// The processor's huge page size. Segments of at least this size begin at a multiple of it.
inline constexpr std::size_t kHugePageBytes = 2 << 20;

// Mapped for reading and writing while the object lives. All owners of memory inside it share the
// object.
class Segment {
 public:
  // Creates at least `bytes` zeroed bytes, in whole pages. `name` only appears in /proc. Errors:
  // kStop with the system call, the size and the limit to raise.
  static Result<std::shared_ptr<Segment>> create(const char* name, std::size_t bytes);
  // Maps a segment that this or another process has created with `expected_bytes`. The descriptor
  // is borrowed and no longer needed afterwards. Errors: kStop if it is no segment or not sealed,
  // because its memory could then disappear while we use it.
  static Result<std::shared_ptr<Segment>> attach(const Descriptor& descriptor,
                                                 std::size_t expected_bytes);
  // The same for a segment of any size.
  static Result<std::shared_ptr<Segment>> attach(const Descriptor& descriptor);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  // The descriptor, borrowed, for sending it to peers. Empty after attach() and close_descriptor().
  const Descriptor& descriptor() const { return descriptor_; }
  // The memory stays mapped.
  void close_descriptor() { descriptor_.reset(); }

  // Without this, a core dump would read the whole segment and so allocate all of its pages.
  void leave_out_of_core_dumps();
  // Zeroes whole pages by giving them back to the system.
  void discard(std::byte* begin, std::size_t bytes);
  // Makes these whole pages private to this process, for good. They keep their addresses and bytes.
  // Later stores through other mappings of the segment do not appear here, and our stores do not
  // appear there. Other threads may use the memory meanwhile. Needs descriptor(). Errors: kStop.
  Status make_private(std::byte* begin, std::size_t bytes);
  // Allocates huge pages for the part of these untouched bytes that fills whole huge pages. That
  // takes a seventh of the time of touching small pages. Does nothing if the kernel has no huge
  // pages.
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

// A segment of another process, mapped read-only while the object lives. Cannot be copied or moved.
class SegmentView {
 public:
  // Maps the segment of a descriptor, which may be read-only. Null if it is not a segment, or if
  // there is no address space for it.
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
