#include "driver/stream_relay.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <random>

#include "base/clock.h"

namespace farandole {
namespace {

constexpr auto kTestTimeout = std::chrono::seconds(60);

struct ConnectedPair {
  Descriptor first;
  Descriptor second;
};

ConnectedPair make_pipe_ends() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

ConnectedPair make_socket_ends() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

Descriptor copy_of(const Descriptor& descriptor) {
  return Descriptor(::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 3));
}

std::string random_bytes(std::size_t count) {
  std::mt19937 random(7);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// Two relays that are connected by pipes. The first relay stands for the driver, the second for a
// host.
struct RelaysInTest {
  RelaysInTest(std::vector<RelayStream> driver_ends, std::vector<RelayStream> host_ends) {
    ::signal(SIGPIPE, SIG_IGN);
    ConnectedPair down_pipe = make_pipe_ends();
    ConnectedPair up_pipe = make_pipe_ends();
    driver =
        make_relay(std::move(up_pipe.first), std::move(down_pipe.second), std::move(driver_ends));
    host = make_relay(std::move(down_pipe.first), std::move(up_pipe.second), std::move(host_ends));
  }

  static std::unique_ptr<StreamRelay> make_relay(Descriptor from, Descriptor to,
                                                 std::vector<RelayStream> streams) {
    auto new_relay = StreamRelay::create(std::move(from), std::move(to), std::move(streams));
    EXPECT_TRUE(new_relay.ok());
    return std::make_unique<StreamRelay>(std::move(new_relay).value());
  }

  void serve() {
    driver->serve();
    host->serve();
  }
  // Serves both relays until the condition is true.
  template <class Condition>
  void serve_until(const Condition& condition) {
    const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "hangs";
      serve();
    }
  }

  std::unique_ptr<StreamRelay> driver;
  std::unique_ptr<StreamRelay> host;
};

// Writes the bytes that fit now, and returns the remaining bytes.
std::string_view write_some(const Descriptor& to, std::string_view bytes) {
  const ssize_t count = bytes.empty() ? 0 : ::write(to.get(), bytes.data(), bytes.size());
  return bytes.substr(count < 0 ? 0 : static_cast<std::size_t>(count));
}

// Reads what has arrived. Returns false at the end.
bool read_some(const Descriptor& from, std::string& into) {
  std::array<char, 1 << 16> buffer{};
  const ssize_t count = ::read(from.get(), buffer.data(), buffer.size());
  if (count > 0) into.append(buffer.data(), static_cast<std::size_t>(count));
  return count != 0;
}

std::vector<RelayStream> single_stream(RelayStream stream) {
  std::vector<RelayStream> streams;
  streams.push_back(std::move(stream));
  return streams;
}

// A relay whose only stream writes into a pipe. The test plays the other relay.
struct RelayWithSink {
  ConnectedPair down_pipe = make_pipe_ends();
  ConnectedPair up_pipe = make_pipe_ends();
  ConnectedPair sink = make_pipe_ends();
  std::unique_ptr<StreamRelay> relay =
      RelaysInTest::make_relay(std::move(up_pipe.first), std::move(down_pipe.second),
                               single_stream({.id = 1, .sink = std::move(sink.second)}));
};

TEST(RelayTest, CarriesMuchDataInBothDirectionsOfASocket) {
  ConnectedPair program = make_socket_ends();
  ConnectedPair worker = make_socket_ends();
  RelaysInTest relays(
      single_stream(
          {.id = 5, .source = copy_of(program.second), .sink = std::move(program.second)}),
      single_stream({.id = 5, .source = copy_of(worker.second), .sink = std::move(worker.second)}));
  const std::string call = random_bytes(9'000'001);
  const std::string result = random_bytes(7'000'000);
  std::string_view call_unsent = call;
  std::string_view result_unsent = result;
  std::string received_call;
  std::string received_result;
  relays.serve_until([&] {
    call_unsent = write_some(program.first, call_unsent);
    result_unsent = write_some(worker.first, result_unsent);
    read_some(worker.first, received_call);
    read_some(program.first, received_result);
    return received_call.size() == call.size() && received_result.size() == result.size();
  });
  EXPECT_TRUE(received_call == call);
  EXPECT_TRUE(received_result == result);
  // The end of one direction leaves the other one open.
  ::shutdown(program.first.get(), SHUT_WR);
  relays.serve_until([&] { return !read_some(worker.first, received_call); });
  write_some(worker.first, "last");
  relays.serve_until([&] {
    read_some(program.first, received_result);
    return received_result.ends_with("last");
  });
  worker.first.reset();
  relays.serve_until([&] { return !read_some(program.first, received_result); });
  EXPECT_EQ(received_result.size(), result.size() + 4);
}

TEST(RelayTest, AnUnreadStreamIsBoundedAndDoesNotDelayOthers) {
  ConnectedPair blocked_source = make_pipe_ends();
  ConnectedPair blocked_sink = make_pipe_ends();
  ConnectedPair source = make_pipe_ends();
  ConnectedPair sink = make_pipe_ends();
  std::vector<RelayStream> driver_ends =
      single_stream({.id = 1, .source = std::move(blocked_source.first)});
  driver_ends.push_back({.id = 2, .source = std::move(source.first)});
  std::vector<RelayStream> host_ends =
      single_stream({.id = 1, .sink = std::move(blocked_sink.second)});
  host_ends.push_back({.id = 2, .sink = std::move(sink.second)});
  RelaysInTest relays(std::move(driver_ends), std::move(host_ends));
  const std::string text_to_send = random_bytes(8 << 20);
  std::string_view blocked_bytes_left = text_to_send;
  std::string_view bytes_left = text_to_send;
  std::string received;
  relays.serve_until([&] {
    blocked_bytes_left = write_some(blocked_source.second, blocked_bytes_left);
    bytes_left = write_some(source.second, bytes_left);
    read_some(sink.first, received);
    return received.size() == text_to_send.size();
  });
  EXPECT_TRUE(received == text_to_send);
  const std::size_t bytes_taken = text_to_send.size() - blocked_bytes_left.size();
  constexpr std::size_t kPipeBytes = 2 << 16;
  EXPECT_GE(bytes_taken, kRelayWindowBytes);
  EXPECT_LE(bytes_taken, kRelayWindowBytes + kPipeBytes);
  // When the blocked stream is read again, its remaining bytes arrive, too.
  std::string late_bytes;
  relays.serve_until([&] {
    blocked_bytes_left = write_some(blocked_source.second, blocked_bytes_left);
    read_some(blocked_sink.first, late_bytes);
    return late_bytes.size() == text_to_send.size();
  });
  EXPECT_TRUE(late_bytes == text_to_send);
}

TEST(RelayTest, AClosedSinkDoesNotBlockTheSender) {
  ConnectedPair source = make_pipe_ends();
  ConnectedPair sink = make_pipe_ends();
  RelaysInTest relays(single_stream({.id = 1, .source = std::move(source.first)}),
                      single_stream({.id = 1, .sink = std::move(sink.second)}));
  sink.first.reset();
  const std::string text_to_send = random_bytes(5 << 20);
  std::string_view bytes_left = text_to_send;
  relays.serve_until([&] {
    bytes_left = write_some(source.second, bytes_left);
    return bytes_left.empty();
  });
}

// The report is written last, but both descriptors are ready when the relay looks at them.
TEST(RelayTest, AReportArrivesAfterEarlierBytes) {
  ConnectedPair data = make_socket_ends();
  ConnectedPair program = make_socket_ends();
  ConnectedPair report = make_pipe_ends();
  std::vector<RelayStream> host_ends =
      single_stream({.id = 2, .source = std::move(report.first), .follows_others = true});
  host_ends.push_back({.id = 3, .source = std::move(data.second)});
  const std::string result = random_bytes(150'000);
  std::string received;
  std::optional<std::size_t> received_before_report;
  std::vector<RelayStream> driver_ends = single_stream(
      {.id = 2,
       .consume =
           [&](std::string_view text) {
             EXPECT_EQ(text, "ended 0 code 0\n");
             while (read_some(program.first, received) && received.size() < result.size()) {
             }
             received_before_report = received.size();
           },
       .follows_others = true});
  driver_ends.push_back({.id = 3, .sink = std::move(program.second)});
  RelaysInTest relays(std::move(driver_ends), std::move(host_ends));
  std::string_view bytes_left = result;
  for (int i = 0; i < 100 && !bytes_left.empty(); ++i)
    bytes_left = write_some(data.first, bytes_left);
  ASSERT_TRUE(bytes_left.empty()) << "the socket is too small for this test";
  write_some(report.second, "ended 0 code 0\n");
  relays.serve_until([&] { return received_before_report.has_value(); });
  EXPECT_EQ(*received_before_report, result.size());
}

TEST(RelayTest, AllBytesOfAnEndedHostAreWritten) {
  ConnectedPair source = make_pipe_ends();
  ConnectedPair sink = make_pipe_ends();
  ConnectedPair input = make_pipe_ends();
  ConnectedPair launcher_input = make_pipe_ends();
  std::vector<RelayStream> driver_ends = single_stream({.id = 1, .sink = std::move(sink.second)});
  driver_ends.push_back({.id = 0, .source = std::move(input.first)});
  std::vector<RelayStream> host_ends = single_stream({.id = 1, .source = std::move(source.first)});
  host_ends.push_back({.id = 0, .sink = std::move(launcher_input.second)});
  RelaysInTest relays(std::move(driver_ends), std::move(host_ends));
  write_some(source.second, "the last words");
  // Another process may still hold the source open, so the relay cannot wait until the source ends.
  relays.host->end_sources();
  relays.serve_until([&] { return relays.host->has_sent_everything(); });
  relays.host.reset();
  relays.driver->peer_process_ended();
  std::string received;
  while (read_some(sink.first, received) && !relays.driver->has_written_everything()) {
  }
  EXPECT_EQ(received, "the last words");
  EXPECT_TRUE(relays.driver->has_written_everything());
  EXPECT_FALSE(read_some(sink.first, received)) << "the sink has ended";
  EXPECT_TRUE(relays.driver->failure().ok());
}

// The driver sends credit while it reads. The host has ended, so it does not read this credit.
TEST(RelayTest, AllBytesOfAHostThatStopsReadingAreWritten) {
  ::signal(SIGPIPE, SIG_IGN);
  ConnectedPair down_pipe = make_pipe_ends();
  ConnectedPair up_pipe = make_pipe_ends();
  ConnectedPair sink = make_pipe_ends();
  const std::string text = random_bytes(kRelayWindowBytes - kRelayPayloadBytesMax);
  std::string frames;
  for (std::size_t sent = 0; sent < text.size(); sent += kRelayPayloadBytesMax)
    append_data(frames, 1, std::string_view(text).substr(sent, kRelayPayloadBytesMax));
  for (const Descriptor& pipe : {std::ref(up_pipe.second), std::ref(sink.second)})
    ASSERT_GE(::fcntl(pipe.get(), F_SETPIPE_SZ, 1 << 20), 1 << 20);
  ASSERT_EQ(write_some(up_pipe.second, frames), "");
  const auto driver =
      RelaysInTest::make_relay(std::move(up_pipe.first), std::move(down_pipe.second),
                               single_stream({.id = 1, .sink = std::move(sink.second)}));
  down_pipe.first.reset();
  up_pipe.second.reset();
  std::string received;
  const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
  while (read_some(sink.first, received)) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "hangs";
    driver->serve();
  }
  EXPECT_EQ(received.size(), text.size());
  EXPECT_TRUE(received == text);
  EXPECT_TRUE(driver->failure().ok());
}

TEST(RelayTest, TheEndOfTheDriverEndsTheInputOfTheLauncher) {
  ConnectedPair launcher_input = make_pipe_ends();
  ConnectedPair input = make_pipe_ends();
  RelaysInTest relays(single_stream({.id = 0, .source = std::move(input.first)}),
                      single_stream({.id = 0, .sink = std::move(launcher_input.second)}));
  relays.driver.reset();
  relays.host->serve();
  EXPECT_TRUE(relays.host->peer_is_gone());
  std::string received;
  EXPECT_FALSE(read_some(launcher_input.first, received));
}

TEST(RelayTest, BytesThatAreNoFramesEndTheConnection) {
  const RelayWithSink test;
  write_some(test.up_pipe.second, "You have new mail.\n");
  test.relay->serve();
  EXPECT_TRUE(test.relay->peer_is_gone());
  EXPECT_NE(test.relay->failure().message().find("You have new mail."), std::string::npos);
  std::string received;
  EXPECT_FALSE(read_some(test.sink.first, received));
}

TEST(RelayTest, APeerThatSendsMoreThanItsCreditIsDisconnected) {
  const RelayWithSink test;
  std::string frames;
  for (std::size_t sent = 0; sent < 2 * kRelayWindowBytes; sent += kRelayPayloadBytesMax)
    append_data(frames, 1, std::string(kRelayPayloadBytesMax, 'x'));
  std::string_view bytes_left = frames;
  for (int i = 0; i < 1000 && !test.relay->peer_is_gone(); ++i) {
    bytes_left = write_some(test.up_pipe.second, bytes_left);
    test.relay->serve();
  }
  EXPECT_NE(test.relay->failure().message().find("stream 1"), std::string::npos);
}

TEST(RelayTest, AFrameOfAnUnknownStreamEndsTheConnection) {
  ConnectedPair down_pipe = make_pipe_ends();
  ConnectedPair up_pipe = make_pipe_ends();
  auto relay = RelaysInTest::make_relay(std::move(down_pipe.first), std::move(up_pipe.second), {});
  std::string bytes;
  append_end(bytes, 77);
  ASSERT_EQ(write_some(down_pipe.second, bytes), "");
  relay->serve();
  EXPECT_TRUE(relay->peer_is_gone());
  EXPECT_EQ(relay->failure().message(), "a frame of the unknown stream 77 has arrived");
}

TEST(RelayTest, BytesBeforeTheFirstFrameAreSentFirst) {
  ConnectedPair down_pipe = make_pipe_ends();
  ConnectedPair up_pipe = make_pipe_ends();
  ConnectedPair source = make_pipe_ends();
  auto relay =
      StreamRelay::create(std::move(down_pipe.first), std::move(up_pipe.second),
                          single_stream({.id = 5, .source = std::move(source.first)}), "before");
  ASSERT_TRUE(relay.ok());
  ASSERT_EQ(write_some(source.second, "after"), "");
  relay->serve();
  std::string expected = "before";
  append_data(expected, 5, "after");
  std::string sent;
  read_some(up_pipe.first, sent);
  EXPECT_EQ(sent, expected);
}

TEST(RelayTest, DescriptorsThatCannotBeUsedAreErrors) {
  ConnectedPair pipe = make_pipe_ends();
  const auto invalid = StreamRelay::create(Descriptor(), std::move(pipe.second), {});
  EXPECT_EQ(invalid.status().code(), StatusCode::kStop);
  EXPECT_EQ(invalid.status().message(), "descriptor -1 cannot be made non-blocking");
  // epoll does not accept /dev/null.
  const auto null_device = [] { return Descriptor(::open("/dev/null", O_RDWR | O_CLOEXEC)); };
  const auto unwatched = StreamRelay::create(null_device(), std::move(pipe.first), {});
  EXPECT_TRUE(
      unwatched.status().message().starts_with("the connection to a host cannot be watched"))
      << unwatched.status().message();
}

TEST(RelayTest, AStreamThatCannotBeWatchedEndsTheConnection) {
  ConnectedPair down_pipe = make_pipe_ends();
  ConnectedPair up_pipe = make_pipe_ends();
  auto relay = RelaysInTest::make_relay(
      std::move(down_pipe.first), std::move(up_pipe.second),
      single_stream({.id = 5, .source = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC))}));
  EXPECT_TRUE(relay->peer_is_gone());
  EXPECT_TRUE(
      relay->failure().message().starts_with("the streams of the workers cannot be watched"))
      << relay->failure().message();
}

}  // namespace
}  // namespace farandole
