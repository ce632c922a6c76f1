#include "transport/unix_socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>

#include "base/no_descriptors_in_test.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

constexpr auto kTestTimeout = std::chrono::seconds(30);

TimePoint deadline_of_test() { return std::chrono::steady_clock::now() + kTestTimeout; }

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string as_text(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

std::pair<UnixSocket, UnixSocket> connected_pair() {
  auto sockets = UnixSocket::make_pair();
  EXPECT_TRUE(sockets.ok()) << sockets.status().message();
  return std::move(sockets).value();
}

TEST(UnixSocket, KeepsTheBoundariesOfMessages) {
  auto [left, right] = connected_pair();
  ASSERT_TRUE(left.send(as_bytes("one"), {}, deadline_of_test()).ok());
  ASSERT_TRUE(left.send(as_bytes("two, longer"), {}, deadline_of_test()).ok());
  EXPECT_EQ(as_text(right.receive(deadline_of_test()).value().bytes), "one");
  EXPECT_EQ(as_text(right.receive(deadline_of_test()).value().bytes), "two, longer");
}

TEST(UnixSocket, CarriesTheLongestMessageUnderDefaultBuffers) {
  auto [left, right] = connected_pair();
  const Bytes longest(kUnixMessageBytesMax, std::byte{7});
  ASSERT_TRUE(left.send(longest, {}, deadline_of_test()).ok());
  EXPECT_EQ(right.receive(deadline_of_test()).value().bytes, longest);
}

TEST(UnixSocket, TransfersDescriptors) {
  auto [left, right] = connected_pair();
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(::pipe2(pipe_ends.data(), O_CLOEXEC), 0);
  const Descriptor read_end(pipe_ends[0]);
  Descriptor write_end(pipe_ends[1]);
  const std::array<int, 1> sent_descriptors{write_end.get()};
  ASSERT_TRUE(left.send(as_bytes("pipe"), sent_descriptors, deadline_of_test()).ok());
  write_end.reset();

  auto message = right.receive(deadline_of_test());
  ASSERT_TRUE(message.ok()) << message.status().message();
  ASSERT_EQ(message->descriptors.size(), 1U);
  EXPECT_EQ(::fcntl(message->descriptors[0].get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  ASSERT_EQ(::write(message->descriptors[0].get(), "x", 1), 1);
  char letter = 0;
  ASSERT_EQ(::read(read_end.get(), &letter, 1), 1);
  EXPECT_EQ(letter, 'x');
}

TEST(UnixSocket, RejectsMessagesOverTheLimitsBeforeSending) {
  auto [left, right] = connected_pair();
  const Bytes too_long(kUnixMessageBytesMax + 1);
  EXPECT_EQ(left.try_send(too_long, {}).code(), StatusCode::kFixCall);
  EXPECT_EQ(left.try_send({}, {}).code(), StatusCode::kFixCall);
  const std::vector<int> too_many(kUnixMessageDescriptorsMax + 1, left.descriptor().get());
  EXPECT_EQ(left.try_send(as_bytes("x"), too_many).code(), StatusCode::kFixCall);
  const std::array<int, 1> closed_descriptor{1 << 20};
  EXPECT_EQ(left.try_send(as_bytes("x"), closed_descriptor).code(), StatusCode::kFixCall);
  EXPECT_EQ(right.try_receive().status().code(), StatusCode::kRetry);
}

TEST(UnixSocket, RejectsTruncatedMessagesAndGoesOn) {
  auto [left, right] = connected_pair();
  const Bytes too_long(kUnixMessageBytesMax + 1);
  ASSERT_EQ(::send(left.descriptor().get(), too_long.data(), too_long.size(), 0),
            static_cast<ssize_t>(too_long.size()));
  const auto rejected_message = right.receive(deadline_of_test());
  ASSERT_FALSE(rejected_message.ok());
  EXPECT_EQ(rejected_message.status().code(), StatusCode::kStop);
  ASSERT_TRUE(left.send(as_bytes("fine"), {}, deadline_of_test()).ok());
  EXPECT_TRUE(right.receive(deadline_of_test()).ok());
}

TEST(UnixSocket, RejectsTooManyDescriptorsAndLeaksNone) {
  auto [left, right] = connected_pair();
  const std::size_t descriptors_before = open_descriptors();
  constexpr std::size_t kCount = kUnixMessageDescriptorsMax + 4;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kCount * sizeof(int))> control{};
  char letter = 'x';
  iovec part{&letter, 1};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(kCount * sizeof(int));
  const std::vector<int> descriptor_numbers(kCount, left.descriptor().get());
  std::memcpy(CMSG_DATA(rights), descriptor_numbers.data(), kCount * sizeof(int));
  ASSERT_EQ(::sendmsg(left.descriptor().get(), &header, 0), 1);

  const auto message = right.receive(deadline_of_test());
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(as_text(message->bytes), "x");
  EXPECT_EQ(message->descriptor_status.code(), StatusCode::kStop);
  EXPECT_THAT(message->descriptor_status.message(), HasSubstr("lost descriptors"));
  EXPECT_EQ(open_descriptors(), descriptors_before);
}

TEST(UnixSocket, APairNeedsDescriptors) {
  const NoFreeDescriptors no_free_descriptors;
  const auto pair = UnixSocket::make_pair();
  EXPECT_EQ(pair.status().code(), StatusCode::kStop);
  EXPECT_THAT(pair.status().message(), HasSubstr("socketpair on a Unix socket failed"));
}

TEST(UnixSocket, RejectsAnotherUser) {
  if (::getuid() != 0) GTEST_SKIP() << "needs root to become another user";
  auto [left, right] = connected_pair();
  const pid_t child = ::fork();
  if (child == 0) {
    const bool is_other_user = ::setresuid(65533, 65533, 65533) == 0;
    const bool sent = ::send(left.descriptor().get(), "boo", 3, MSG_NOSIGNAL) == 3;
    ::_exit(is_other_user && sent ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  const auto rejected_message = right.receive(deadline_of_test());
  ASSERT_FALSE(rejected_message.ok());
  EXPECT_EQ(rejected_message.status().code(), StatusCode::kStop);
  EXPECT_THAT(rejected_message.status().message(), HasSubstr("user id 65533"));
}

TEST(UnixSocket, AClosedPeerIsReported) {
  auto [left, right] = connected_pair();
  ASSERT_TRUE(left.send(as_bytes("last words"), {}, deadline_of_test()).ok());
  left.take_descriptor().reset();
  EXPECT_TRUE(right.receive(deadline_of_test()).ok());
  EXPECT_EQ(right.receive(deadline_of_test()).status().code(), StatusCode::kRebuildGroup);
  EXPECT_EQ(right.send(as_bytes("x"), {}, deadline_of_test()).code(), StatusCode::kRebuildGroup);
}

TEST(UnixSocket, WaitsForAMessageAndForRoom) {
  auto [left, right] = connected_pair();
  EXPECT_EQ(right.receive(std::chrono::steady_clock::now()).status().code(), StatusCode::kRetry);
  const Bytes longest(kUnixMessageBytesMax);
  int sent = 0;
  while (left.try_send(longest, {}).ok()) ++sent;
  EXPECT_EQ(left.send(longest, {}, std::chrono::steady_clock::now()).code(), StatusCode::kRetry);
  std::jthread writer(
      [&left, &longest] { EXPECT_TRUE(left.send(longest, {}, deadline_of_test()).ok()); });
  for (int i = 0; i < sent + 1; ++i) EXPECT_TRUE(right.receive(deadline_of_test()).ok());
}

TEST(UnixSocket, AdoptsOnlySequencedPacketSockets) {
  EXPECT_THAT(UnixSocket::adopt(Descriptor(1 << 20)).status().message(), HasSubstr("is not open"));
  Descriptor file(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_THAT(UnixSocket::adopt(std::move(file)).status().message(), HasSubstr("not a socket"));
  Descriptor unconnected(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  EXPECT_THAT(UnixSocket::adopt(std::move(unconnected)).status().message(),
              HasSubstr("not connected"));
  std::array<int, 2> descriptor_numbers{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, descriptor_numbers.data()), 0);
  const Descriptor second_end(descriptor_numbers[1]);
  EXPECT_THAT(UnixSocket::adopt(Descriptor(descriptor_numbers[0])).status().message(),
              HasSubstr("SOCK_SEQPACKET"));
}

}  // namespace
}  // namespace farandole
