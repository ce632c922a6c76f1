// Segment: memory that processes of one host can share. It is a sealed memfd: it has no file name,
// its size cannot change, and it is freed with the last process that maps it. The kernel allocates
// each page at its first use; the pages do not count against the size of /dev/shm. If the memory
// cgroup is full when a page is first used, the kernel kills a process instead of sending SIGBUS.
// To reserve the pages before their first use would not prevent this.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "base/descriptor.h"
#include "farandole/status.h"

namespace farandole {

// The processor's huge page size. Segments of at least this size begin at a multiple of this size.
inline constexpr std::size_t kHugePageBytes = 2 << 20;

// The memory is mapped for reading and writing while this object exists. All owners of memory in
// the segment share ownership of this object.
class Segment {
 public:
  // Creates at least `bytes` zeroed bytes, in whole pages. `name` appears only in /proc. Errors:
  // kStop with the system call, the size and the limit to raise.
  static Result<std::shared_ptr<Segment>> create(const char* name, std::size_t bytes);
  // Maps a segment that this or another process has created with `expected_bytes`. The descriptor
  // is borrowed, and may be closed afterwards. Errors: kStop if the descriptor is not that of a
  // segment, or if the segment is not sealed, because an unsealed one could shrink while we use it.
  static Result<std::shared_ptr<Segment>> attach(const Descriptor& descriptor,
                                                 std::size_t expected_bytes);
  // Maps a segment of any size.
  static Result<std::shared_ptr<Segment>> attach(const Descriptor& descriptor);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  // Returns a borrowed descriptor, which can be sent to peers. It is invalid in a segment that
  // attach() has returned, and after close_descriptor().
  const Descriptor& descriptor() const { return descriptor_; }
  // Closes the descriptor. The memory stays mapped.
  void close_descriptor() { descriptor_.reset(); }

  // Excludes the segment from core dumps. Otherwise a core dump would read the whole segment, which
  // allocates all its pages.
  void exclude_from_core_dumps();
  // Zeroes whole pages by giving them back to the system.
  void discard(std::byte* begin, std::size_t bytes);
  // Permanently makes these whole pages private to this process. They keep their addresses and
  // bytes. Later stores through other mappings of the segment do not appear here, and our stores do
  // not appear there. Other threads may use the memory during this call. The descriptor must be
  // open. Errors: kStop.
  Status make_private(std::byte* begin, std::size_t bytes);
  // Allocates the huge pages that lie entirely in this range. The range must be untouched. To
  // allocate it in small pages would take seven times longer. If the kernel has no free huge page,
  // it allocates only one small page in its place.
  void allocate_huge_pages(std::byte* begin, std::size_t bytes);

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
  // Maps the segment of a descriptor, which may be read-only. Returns null if the descriptor is not
  // that of a segment, or if there is no address space for the segment.
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
