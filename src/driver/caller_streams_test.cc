#include "driver/caller_streams.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>

#include "base/descriptor.h"
#include "base/no_descriptors_in_test.h"

namespace farandole {
namespace {

TEST(CallerStreams, WithoutADescriptorTheRankIsNamed) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  const Descriptor first(ends[0]);
  const Descriptor second(ends[1]);
  const CallerDescriptors caller{.channels = {-1, -1, first.get()}, .streams = {}, .copies = {}};
  const NoFreeDescriptors none;
  const auto streams = streams_of_host(caller, 2, 1, [](std::string_view) {});
  EXPECT_EQ(streams.status().code(), StatusCode::kStop);
  EXPECT_TRUE(streams.status().message().starts_with("cannot relay the channel of rank 2: fcntl: "))
      << streams.status().message();
}

}  // namespace
}  // namespace farandole
