#include "launcher/channel_door.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <utility>

#include "base/bytes.h"
#include "base/no_descriptors_in_test.h"
#include "transport/unix_socket.h"

namespace farandole {
namespace {

TEST(ChannelDoor, TheProgramGetsTheOtherEndWithTheSlot) {
  auto [launcher, program] = UnixSocket::make_pair().value();
  for (const std::uint32_t slot : {0U, 7U}) {
    const Descriptor worker_end =
        open_channel(launcher.descriptor().get(), static_cast<int>(slot)).value();
    const UnixMessage message = program.try_receive().value();
    ByteReader reader(message.bytes);
    EXPECT_EQ(reader.get<std::uint32_t>(), slot);
    EXPECT_TRUE(reader.ok() && reader.at_end());
    ASSERT_EQ(message.descriptors.size(), 1U);
    ASSERT_EQ(::write(worker_end.get(), "x", 1), 1);
    char byte = 0;
    EXPECT_EQ(::read(message.descriptors.front().get(), &byte, 1), 1);
    EXPECT_EQ(byte, 'x');
  }
}

TEST(ChannelDoor, ErrorsNameTheRank) {
  auto [launcher, program] = UnixSocket::make_pair().value();
  const int door = launcher.descriptor().get();
  {
    const NoFreeDescriptors no_free_descriptors;
    const Status error = open_channel(door, 3).status();
    EXPECT_EQ(error.code(), StatusCode::kStop);
    EXPECT_TRUE(error.message().starts_with("cannot open the channel of rank 3: "))
        << error.message();
  }
  program.take_descriptor().reset();
  const Status gone_error = open_channel(door, 3).status();
  EXPECT_EQ(gone_error,
            Status::stop("cannot open the channel of rank 3: the process at the other end of "
                         "the Unix socket is gone"));
}

TEST(ChannelDoor, ADoorOfAnotherTypeIsRejected) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  const Descriptor first(ends[0]);
  const Descriptor second(ends[1]);
  EXPECT_EQ(open_channel(first.get(), 0).status().code(), StatusCode::kFixCall);
}

}  // namespace
}  // namespace farandole
