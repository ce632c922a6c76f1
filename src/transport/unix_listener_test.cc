#include "transport/unix_listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/no_descriptors_in_test.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

TimePoint test_deadline() { return std::chrono::steady_clock::now() + std::chrono::seconds(30); }

// A name that only this test in this process uses.
std::string unique_name() {
  static int count = 0;
  return "farandole.test." + std::to_string(::getpid()) + "." + std::to_string(++count);
}

TEST(UnixListener, TheClientIsKnownAndCanSendAtOnce) {
  const std::string name = unique_name();
  auto listener = UnixListener::open(name);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  EXPECT_EQ(listener->accept().status().code(), StatusCode::kRetry);
  const auto connection = UnixListener::connect(name);
  ASSERT_TRUE(connection.ok()) << connection.status().message();
  const Bytes hello(3, std::byte{7});
  // The message is sent before the listener accepts the client.
  ASSERT_TRUE(connection->send(hello, {}, test_deadline()).ok());
  const auto client = listener->accept();
  ASSERT_TRUE(client.ok()) << client.status().message();
  EXPECT_EQ(client->process, ::getpid());
  const auto message = client->socket.receive(test_deadline());
  ASSERT_TRUE(message.ok()) << message.status().message();
  EXPECT_EQ(message->bytes, hello);
}

TEST(UnixListener, ANameHasOneHolder) {
  const std::string name = unique_name();
  auto first = UnixListener::open(name);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(UnixListener::open(name).status().code(), StatusCode::kRetry);
  first->close();
  EXPECT_EQ(UnixListener::connect(name).status().code(), StatusCode::kRetry);
  EXPECT_TRUE(UnixListener::open(name).ok());
}

TEST(UnixListener, RejectsEmptyAndLongNames) {
  for (const std::size_t length : std::initializer_list<std::size_t>{0, 108}) {
    const std::string name(length, 'n');
    EXPECT_THAT(UnixListener::open(name).status().message(),
                HasSubstr("name of " + std::to_string(length) + " bytes"));
    EXPECT_EQ(UnixListener::connect(name).status().code(), StatusCode::kFixCall);
  }
}

TEST(UnixListener, FailsWithoutFreeDescriptors) {
  const std::string name = unique_name();
  const auto listener = UnixListener::open(name);
  ASSERT_TRUE(listener.ok());
  const auto connection = UnixListener::connect(name);
  ASSERT_TRUE(connection.ok());
  const NoFreeDescriptors no_free_descriptors;
  EXPECT_THAT(UnixListener::open(name).status().message(), HasSubstr("socket on an abstract"));
  EXPECT_EQ(listener->accept().status().code(), StatusCode::kStop);
}

TEST(UnixListener, TooManyClientsMustRetry) {
  const std::string name = unique_name();
  const auto listener = UnixListener::open(name);
  ASSERT_TRUE(listener.ok());
  std::vector<UnixSocket> waiting_sockets;
  for (;;) {
    auto connection = UnixListener::connect(name);
    if (!connection.ok()) {
      EXPECT_EQ(connection.status().code(), StatusCode::kRetry) << connection.status().message();
      EXPECT_THAT(connection.status().message(), HasSubstr("too many processes are waiting"));
      break;
    }
    waiting_sockets.push_back(*std::move(connection));
  }
}

// Runs `action` as another user in a child process. Returns the result of `action`.
template <class Action>
int run_as_another_user(Action action) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::setuid(65534) == 0 ? action() : 99);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

TEST(UnixListener, BothSidesRejectOtherUsers) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can act as another user for a moment";
  const std::string name = unique_name();
  const auto listener = UnixListener::open(name);
  ASSERT_TRUE(listener.ok());
  const int exit_code = run_as_another_user([&] {
    const auto connection = UnixListener::connect(name);
    return connection.status().message().find("of user id 0 ") != std::string::npos ? 7 : 1;
  });
  EXPECT_EQ(exit_code, 7);
  const auto accept_result = listener->accept();
  EXPECT_EQ(accept_result.status().code(), StatusCode::kRetry);
  EXPECT_THAT(accept_result.status().message(), HasSubstr("of user id 65534"));
}

}  // namespace
}  // namespace farandole
