#include "transport/shm/segment.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace farandole {
namespace {

using testing::HasSubstr;

TEST(Segment, IsZeroedAndInWholePages) {
  const auto segment = Segment::create("farandole-test", 5000).value();
  EXPECT_GE(segment->size(), 5000u);
  EXPECT_EQ(segment->size() % static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)), 0u);
  EXPECT_TRUE(std::all_of(segment->data(), segment->data() + segment->size(),
                          [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Segment, TwoMappingsAreTheSameMemory) {
  const auto segment = Segment::create("farandole-test", 5000).value();
  const auto attached = Segment::attach(segment->descriptor(), 5000).value();
  ASSERT_NE(segment->data(), attached->data());
  EXPECT_EQ(attached->size(), segment->size());
  segment->data()[4999] = std::byte{7};
  EXPECT_EQ(attached->data()[4999], std::byte{7});
  EXPECT_FALSE(attached->descriptor().valid());
}

TEST(Segment, CanBeAttachedWithoutKnowingTheSize) {
  const auto segment = Segment::create("farandole-test", 3 * kHugePageBytes).value();
  const auto attached = Segment::attach(segment->descriptor()).value();
  EXPECT_EQ(attached->size(), 3 * kHugePageBytes);
  for (const auto* side : {&segment, &attached})
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>((*side)->data()) % kHugePageBytes, 0u);
  attached->data()[3 * kHugePageBytes - 1] = std::byte{7};
  EXPECT_EQ(segment->data()[3 * kHugePageBytes - 1], std::byte{7});
}

std::size_t bytes_in_use(const Segment& segment) {
  struct stat attributes{};
  EXPECT_EQ(::fstat(segment.descriptor().get(), &attributes), 0);
  return static_cast<std::size_t>(attributes.st_blocks) * 512;
}

TEST(Segment, DiscardedPagesAreZeroAndCostNothing) {
  const auto segment = Segment::create("farandole-test", 8192).value();
  std::memset(segment->data(), 1, 8192);
  segment->discard(segment->data() + 4096, 4096);
  EXPECT_EQ(segment->data()[4095], std::byte{1});
  EXPECT_EQ(bytes_in_use(*segment), 4096u);
  EXPECT_EQ(segment->data()[4096], std::byte{0});
  // The kernel does not discard locked pages, so discard() must zero them.
  ASSERT_EQ(::mlock(segment->data(), 4096), 0);
  segment->discard(segment->data(), 4096);
  EXPECT_EQ(segment->data()[4095], std::byte{0});
}

TEST(Segment, OnlyWholeHugePagesAreAllocated) {
  const auto segment = Segment::create("farandole-test", 4 * kHugePageBytes).value();
  segment->allocate_huge_pages(segment->data() + 1, kHugePageBytes);
  EXPECT_EQ(bytes_in_use(*segment), 0u);
  segment->allocate_huge_pages(segment->data() + kHugePageBytes - 1, 2 * kHugePageBytes);
  // A kernel without huge pages allocates only the small page that was touched.
  EXPECT_THAT(bytes_in_use(*segment), testing::AnyOf(4096u, kHugePageBytes));
  EXPECT_TRUE(std::all_of(segment->data(), segment->data() + segment->size(),
                          [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Segment, MemoryStaysWithoutDescriptor) {
  const auto segment = Segment::create("farandole-test", 4096).value();
  segment->close_descriptor();
  EXPECT_FALSE(segment->descriptor().valid());
  segment->data()[0] = std::byte{1};
  EXPECT_EQ(segment->data()[0], std::byte{1});
}

TEST(Segment, CanBeMappedReadOnly) {
  const auto segment = Segment::create("test", 5000).value();
  const std::string path = "/proc/self/fd/" + std::to_string(segment->descriptor().get());
  const Descriptor read_only(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto view = SegmentView::attach(read_only);
  ASSERT_NE(view, nullptr);
  EXPECT_EQ(view->size(), segment->size());
  segment->data()[4999] = std::byte{7};
  EXPECT_EQ(view->data()[4999], std::byte{7});
  const Descriptor unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(SegmentView::attach(unsealed), nullptr);
  EXPECT_EQ(SegmentView::attach(Descriptor()), nullptr);
}

TEST(Segment, CannotChangeItsSize) {
  const auto segment = Segment::create("farandole-test", 8192).value();
  EXPECT_NE(::ftruncate(segment->descriptor().get(), 4096), 0);
  EXPECT_NE(::ftruncate(segment->descriptor().get(), 1 << 20), 0);
  const int flags = ::fcntl(segment->descriptor().get(), F_GETFD);
  EXPECT_TRUE((flags & FD_CLOEXEC) != 0);
}

TEST(Segment, RejectsAnotherSize) {
  const auto segment = Segment::create("farandole-test", 8192).value();
  const auto result = Segment::attach(segment->descriptor(), 1 << 20);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kStop);
  EXPECT_THAT(result.status().message(), HasSubstr("8192 bytes but 1048576 were expected"));
}

TEST(Segment, RejectsUnsealedMemory) {
  const Descriptor unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 4096), 0);
  const auto result = Segment::attach(unsealed, 4096);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().message(), HasSubstr("seals"));
}

TEST(Segment, RejectsMemoryThatMayStillShrink) {
  const Descriptor growing(::memfd_create("growing", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(growing.get(), 4096), 0);
  ASSERT_EQ(::fcntl(growing.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  const auto result = Segment::attach(growing, 4096);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().message(), HasSubstr("seals"));
}

TEST(Segment, RejectsDescriptorsThatAreNoSegment) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
  const Descriptor reader(pipe_ends[0]);
  const Descriptor writer(pipe_ends[1]);
  EXPECT_FALSE(Segment::attach(reader, 4096).ok());
  EXPECT_FALSE(Segment::attach(Descriptor(), 4096).ok());
}

TEST(Segment, SaysWhichCallFailed) {
  const auto result = Segment::create("farandole-test", std::size_t{1} << 62);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kStop);
  EXPECT_THAT(result.status().message(), HasSubstr("failed"));
  EXPECT_FALSE(Segment::create("farandole-test", 0).ok());
}

}  // namespace
}  // namespace farandole
