#include "driver/launcher_session.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/bytes.h"
#include "base/descriptor.h"

namespace farandole {
namespace {

// Runs LauncherSession::begin() with the given text as its standard input.
class LauncherSessionTest : public ::testing::Test {
 protected:
  static Result<LauncherSession> begin(const std::string& input) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    const Descriptor read_end(ends[0]);
    Descriptor write_end(ends[1]);
    EXPECT_EQ(::write(write_end.get(), input.data(), input.size()),
              static_cast<ssize_t>(input.size()));
    write_end.reset();
    const Descriptor original_input(::dup(STDIN_FILENO));
    ::dup2(read_end.get(), STDIN_FILENO);
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    auto session = LauncherSession::begin("1.2.3");
    EXPECT_EQ(::testing::internal::GetCapturedStdout(), "\nfarandole agent 1.2.3\n");
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "\nfarandole agent 1.2.3\n");
    ::dup2(original_input.get(), STDIN_FILENO);
    return session;
  }

  static std::string text_of(const Bytes& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  static std::string bytes_of_number(std::uint32_t value) {
    std::string bytes(sizeof(value), '\0');
    std::memcpy(bytes.data(), &value, sizeof(value));
    return bytes;
  }

  const std::string secret_ = std::string(32, 's');
};

TEST_F(LauncherSessionTest, TheOrderFollowsTheSecret) {
  const LauncherOrder order{.folder = "/work",
                            .environment = {"A=1"},
                            .flags = {"-n", "2"},
                            .program = {"train"},
                            .nodes = 3,
                            .node = 1,
                            .host = "owl",
                            .first_host = "hen",
                            .addresses = {"10.0.0.1:4000"}};
  const auto session = begin(secret_ + text_of(encode(order)));
  ASSERT_TRUE(session.ok()) << session.status().message();
  EXPECT_EQ(session->order(), order);
  std::string secret(32, ' ');
  EXPECT_EQ(::read(session->secret_descriptor(), secret.data(), secret.size()), 32);
  EXPECT_EQ(secret, secret_);
  const auto options = session->node_options();
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->nodes, 3);
  EXPECT_EQ(options->node, 1);
  EXPECT_EQ(options->host, "owl");
  EXPECT_EQ(options->endpoint.host, "hen");
  EXPECT_EQ(options->addresses.at(0).text(), "10.0.0.1:4000");
}

// The driver has already reported why it ends, so the launcher reports nothing.
TEST_F(LauncherSessionTest, TheLossOfTheDriverHasNoErrorText) {
  for (const std::string& input : {std::string(), std::string(31, 's'), secret_, secret_ + "\1",
                                   secret_ + bytes_of_number(100) + "part of an order"}) {
    const auto session = begin(input);
    EXPECT_EQ(session.status().code(), StatusCode::kStop);
    EXPECT_EQ(session.status().message(), "");
  }
}

TEST_F(LauncherSessionTest, BytesThatAreNotAnOrderAreRejected) {
  EXPECT_EQ(begin(secret_ + bytes_of_number(kOrderBytesMax + 1)).status().message(),
            "`farandole agent` is started by `farandole run -H …`, not by users");
  EXPECT_EQ(begin(secret_ + bytes_of_number(4) + "word").status().message(),
            "the driver has sent bytes that are not an order");
}

}  // namespace
}  // namespace farandole
