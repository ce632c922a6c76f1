#include "driver/caller_streams.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>

#include "base/descriptor.h"
#include "base/no_descriptors_in_test.h"

namespace farandole {
namespace {

TEST(CallerStreams, AnErrorWithoutAFreeDescriptorNamesTheRank) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()), 0);
  const Descriptor door(ends[0]);
  const Descriptor program_end(ends[1]);
  const CallerDescriptors caller{.door = door.get(), .channels = {}, .streams = {}, .copies = {}};
  const NoFreeDescriptors no_free_descriptors;
  const auto streams = streams_of_host(caller, 2, 1, [](std::string_view) {});
  EXPECT_EQ(streams.status().code(), StatusCode::kStop);
  EXPECT_TRUE(streams.status().message().starts_with("cannot open the channel of rank 2: "))
      << streams.status().message();
}

}  // namespace
}  // namespace farandole
