#include "hosts/streams.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "collective/group_in_test.h"

namespace farandole {
namespace {

HostStream stream_of(const std::vector<std::int64_t>& sizes) {
  HostStream stream;
  int member = 0;
  for (const std::int64_t bytes : sizes) stream.add({.sender = member++, .bytes = bytes});
  return stream;
}

// Returns the member and the positions of each overlap.
std::string visited_text(const HostStream& stream, StreamRange range) {
  std::string text;
  stream.visit(range, [&](const Block& block, StreamRange part) {
    text += std::to_string(block.sender) + ":" + std::to_string(part.begin) + "-" +
            std::to_string(part.end) + " ";
  });
  return text;
}

TEST(HostStream, visits_the_blocks_that_overlap_a_range) {
  const HostStream stream = stream_of({10, 0, 5, 20});
  EXPECT_EQ(stream.bytes(), 35);
  EXPECT_EQ(visited_text(stream, {0, 35}), "0:0-10 2:10-15 3:15-35 ");
  EXPECT_EQ(visited_text(stream, {9, 16}), "0:9-10 2:10-15 3:15-16 ");
  EXPECT_EQ(visited_text(stream, {10, 15}), "2:10-15 ");
  EXPECT_EQ(visited_text(stream, {20, 99}), "3:20-35 ");
  EXPECT_EQ(visited_text(stream, {12, 12}), "");
  EXPECT_EQ(visited_text(HostStream(), {0, 5}), "");
}

TEST(HostStream, may_define_where_its_chunks_end) {
  HostStream stream;
  for (const std::int64_t bytes : {10, 0, 7}) {
    stream.add({.bytes = bytes});
    stream.end_chunk();
  }
  EXPECT_EQ(stream.chunk(0, 4).end, 10);
  EXPECT_EQ(stream.chunk(1, 4).bytes(), 0);
  EXPECT_EQ(stream.chunk(2, 4).begin, 10);
  EXPECT_EQ(stream.chunk(2, 4).end, 17);
}

class Layouts : public ::testing::TestWithParam<int> {
 protected:
  Layouts() {
    HostParts parts;
    parts.members.assign(3, std::vector<int>(static_cast<std::size_t>(GetParam())));
    group_.group(0).parts = parts;
  }

  GroupInTest group_{1};
};

TEST_P(Layouts, several_lanes_send_no_large_bursts) {
  const HostNotes notes(group_.group(0), step_identity(1), {.payload_bytes = {100, 200, 300}});
  const WindowLayout layout(notes, 3, 6);
  const std::int64_t burst_bytes = 2 * layout.chunk_bytes() / GetParam();
  EXPECT_GT(burst_bytes, WindowLayout::kLaneBytesMax / 4);
  if (GetParam() > 1) EXPECT_LE(burst_bytes, WindowLayout::kLaneBytesMax);
}

TEST_P(Layouts, slices_divide_every_chunk) {
  const HostNotes notes(group_.group(0), step_identity(1), {.payload_bytes = {100, 200, 300}});
  const WindowLayout layout(notes, 3, 6);
  for (const std::int64_t bytes :
       {std::int64_t{1}, std::int64_t{65}, layout.chunk_bytes(), 2 * layout.chunk_bytes() + 100}) {
    const HostStream stream = stream_of({bytes});
    std::int64_t position = 0;
    for (std::int64_t window = 0; window < layout.windows_for(bytes); ++window)
      for (int lane = 0; lane < GetParam(); ++lane) {
        const StreamRange slice = layout.slice(stream, window, lane);
        EXPECT_EQ(slice.begin, position);
        EXPECT_LE(slice.bytes(), layout.slice_offset(0, 1) - layout.slice_offset(0, 0));
        EXPECT_TRUE(slice.begin % kPieceAlignment == 0 || slice.bytes() == 0);
        position = slice.end;
      }
    EXPECT_EQ(position, bytes);
  }
}

TEST_P(Layouts, windows_lie_after_the_notes_in_two_halves) {
  const HostNotes notes(group_.group(0), step_identity(1), {.payload_bytes = {100, 200, 300}});
  const WindowLayout layout(notes, 3, 6);
  EXPECT_EQ(layout.chunk_offset(0, 0), notes.end());
  EXPECT_EQ(layout.chunk_offset(2, 1), layout.chunk_offset(0, 1));
  EXPECT_EQ(layout.slice_offset(0, 0), layout.chunk_offset(0, 3));
  EXPECT_LE(layout.slice_offset(0, 6), layout.chunk_offset(1, 0));
  EXPECT_LE(layout.slice_offset(1, 6), static_cast<std::int64_t>(kStagingBytesPerSlot));
}

// A chunk has a slice for each lane. GatheredReduction divides a chunk among the members of a host.
TEST(WindowLayout, many_hosts_do_not_make_the_slices_tiny) {
  HostParts parts;
  parts.members.assign(66, std::vector<int>(2));
  GroupInTest group{1};
  group.group(0).parts = parts;
  const HostNotes notes(group.group(0), step_identity(1),
                        {.payload_bytes = std::vector<std::int64_t>(66, 64)});
  EXPECT_GT(WindowLayout(notes, 1, 66).chunk_bytes(), WindowLayout::kSliceBytesMin);
}

INSTANTIATE_TEST_SUITE_P(Lanes, Layouts, ::testing::Values(1, 2, 3, 8));

}  // namespace
}  // namespace farandole
