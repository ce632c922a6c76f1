#include "network/tcp/dialer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/no_descriptors_in_test.h"
#include "base/try.h"
#include "network/tcp/job_in_test.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

// An address at which a socket listens, but no process answers.
struct SilentAddress {
  SilentAddress() {
    const KernelAddress any_port_address = kernel_address_of(address_of("127.0.0.1:0"));
    socket = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(socket.get(), any_port_address.get(), any_port_address.bytes), 0);
    EXPECT_EQ(::listen(socket.get(), 10), 0);
  }
  SocketAddress listen_address() const { return *own_address_of(socket.get()); }
  Descriptor socket;
};

SocketAddress dead_address() {
  const SilentAddress closed_socket;
  return closed_socket.listen_address();
}

class DialerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ListenOptions listen;
    listen.addresses = {address_of("127.0.0.1:0"), address_of("[::1]:0")};
    listen.acceptance = test_acceptance();
    listener_ = *TcpListener::open(*context_, listen);
    v4_ = listener_->addresses()[0];
    v6_ = listener_->addresses()[1];
    options_.link = test_link();
    options_.pause = std::chrono::milliseconds(20);
  }

  // Returns the connection of the dialing end, or its error.
  Result<std::unique_ptr<Connection>> dial(const TlsContext& context) {
    FARANDOLE_TRY_ASSIGN(
        const auto dialer,
        Dialer::start(context, options_, std::chrono::steady_clock::now(), test_deadline()));
    for (;;) {
      FARANDOLE_TRY_ASSIGN(auto connection, dialer->try_connect(std::chrono::steady_clock::now()));
      accept();
      if (connection) {
        while (accepted_.empty()) accept();
        return connection;
      }
      const TimePoint wake_time = std::min(dialer->next_deadline(), listener_->next_deadline());
      sleep_for({dialer->descriptor(), listener_->descriptor()}, wake_time);
    }
  }

  void accept() {
    auto accepted = listener_->try_accept(std::chrono::steady_clock::now());
    ASSERT_TRUE(accepted.ok()) << accepted.status().message();
    if (*accepted) accepted_.push_back(*std::move(accepted));
  }

  std::unique_ptr<TlsContext> context_ = context_of('s');
  std::unique_ptr<TcpListener> listener_;
  SocketAddress v4_;
  SocketAddress v6_;
  DialOptions options_;
  std::vector<std::unique_ptr<Connection>> accepted_;
};

TEST_F(DialerTest, ConnectsOverBothFamilies) {
  for (const SocketAddress& listen_address : {v4_, v6_}) {
    options_.addresses = {listen_address};
    accepted_.clear();
    const auto connection = dial(*context_);
    ASSERT_TRUE(connection.ok()) << connection.status().message();
    EXPECT_THAT((*connection)->peer().addresses, HasSubstr(listen_address.text()));
    EXPECT_EQ((*connection)->peer().party, (Party{Role::kWorker, 0}));
    const Bytes payload = random_bytes(1'000'000, 1);
    EXPECT_EQ(transfer(**connection, *accepted_[0], payload), payload);
  }
}

TEST_F(DialerTest, FindsTheAddressThatWorks) {
  const SilentAddress silent_address;
  options_.addresses = {silent_address.listen_address(), dead_address(), address_of("224.0.0.1:1"),
                        v6_};
  const auto connection = dial(*context_);
  ASSERT_TRUE(connection.ok()) << connection.status().message();
  EXPECT_EQ(accepted_.size(), 1u);
}

TEST_F(DialerTest, IsAcceptedOnlyOnce) {
  options_.pause = Duration::zero();  // the dialer tries all addresses at the same time
  options_.addresses = {v4_, v6_, v4_, v6_, v4_, v6_};
  const auto connection = dial(*context_);
  ASSERT_TRUE(connection.ok()) << connection.status().message();
  for (int i = 0; i < 50; ++i) {
    accept();
    sleep_for({listener_->descriptor()},
              std::chrono::steady_clock::now() + std::chrono::milliseconds(1));
  }
  EXPECT_EQ(accepted_.size(), 1u);
  EXPECT_EQ(listener_->counts().accepted, 1u);
}

TEST_F(DialerTest, ListsTheErrorOfEachAddress) {
  const SilentAddress silent_address;
  const SocketAddress closed_address = dead_address();
  options_.addresses = {silent_address.listen_address(), closed_address, address_of("224.0.0.1:1")};
  options_.attempt_time_max = std::chrono::milliseconds(100);
  options_.rounds = 2;
  const Status error = dial(*context_).status();
  EXPECT_EQ(error.code(), StatusCode::kRebuildGroup);
  EXPECT_THAT(error.message(), HasSubstr("cannot connect to worker 0: no address works; "));
  EXPECT_THAT(error.message(), HasSubstr(silent_address.listen_address().text() +
                                         " (tried 2 times): no answer within 100 ms; "));
  EXPECT_THAT(error.message(),
              HasSubstr(closed_address.text() + " (tried 2 times): the TCP connection "));
  EXPECT_THAT(error.message(), HasSubstr("Connection refused (no process listens there); "));
  EXPECT_THAT(error.message(), HasSubstr("224.0.0.1:1 (tried 2 times): the TCP connection "));
}

TEST_F(DialerTest, IsRejectedWithAnotherSecret) {
  options_.addresses = {v4_};
  options_.rounds = 1;
  const auto other_context = context_of('t');
  const Status error = dial(*other_context).status();
  EXPECT_EQ(error.code(), StatusCode::kRebuildGroup);
  EXPECT_TRUE(accepted_.empty());
}

TEST_F(DialerTest, EndsAtItsDeadline) {
  const SilentAddress silent_address;
  options_.addresses = {silent_address.listen_address(), dead_address()};
  const TimePoint now = std::chrono::steady_clock::now();
  const auto dialer = *Dialer::start(*context_, options_, now, now + std::chrono::seconds(1));
  EXPECT_EQ(*dialer->try_connect(now), nullptr);
  EXPECT_EQ(dialer->next_deadline(), now + options_.pause);
  const Status error = dialer->try_connect(now + std::chrono::seconds(1)).status();
  EXPECT_EQ(error.code(), StatusCode::kRebuildGroup);
  EXPECT_THAT(error.message(), HasSubstr("there was no connection in time"));
  EXPECT_THAT(error.message(), HasSubstr("(tried 1 times): no answer yet"));
  EXPECT_THAT(error.message(), HasSubstr("(tried 0 times): not tried yet"));
  EXPECT_EQ(dialer->try_connect(now).status(), error);  // the error is final
}

// The peer may already have accepted the connection, and it accepts only one connection.
TEST_F(DialerTest, WaitsForTheConfirmationUntilItsDeadline) {
  options_.addresses = {v4_, v6_};
  const TimePoint now = std::chrono::steady_clock::now();
  const TimePoint deadline = now + std::chrono::hours(1);
  const auto dialer = *Dialer::start(*context_, options_, now, deadline);
  const TimePoint limit = test_deadline();
  // The listener answers. Then the test does not call the listener again until the time limit of an
  // attempt is over.
  while (dialer->next_deadline() != deadline && std::chrono::steady_clock::now() < limit) {
    accept();
    ASSERT_EQ(*dialer->try_connect(now), nullptr);
  }
  const TimePoint later = now + 2 * options_.attempt_time_max;
  EXPECT_EQ(*dialer->try_connect(later), nullptr);
  EXPECT_EQ(dialer->next_deadline(), deadline);
  std::unique_ptr<Connection> connection;
  while (!connection && std::chrono::steady_clock::now() < limit) {
    accept();
    connection = *dialer->try_connect(later);
  }
  ASSERT_TRUE(connection);
  EXPECT_EQ(accepted_.size(), 1U);
  EXPECT_EQ(dialer->try_connect(later).status().code(), StatusCode::kFixCall);
}

// The listener's answer has arrived in time, but this process reads it late.
TEST_F(DialerTest, AnAnswerThatIsReadLateStillCounts) {
  options_.addresses = {v4_};
  const TimePoint now = std::chrono::steady_clock::now();
  const TimePoint deadline = now + std::chrono::hours(1);
  const auto dialer = *Dialer::start(*context_, options_, now, deadline);
  for (int i = 0; i < 20; ++i) {  // connect to the listener, and send the first message
    ASSERT_EQ(*dialer->try_connect(now), nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_NE(dialer->next_deadline(), deadline) << "the listener has not answered yet";
  pollfd answer{dialer->descriptor(), POLLIN, 0};
  const TimePoint limit = test_deadline();
  while (::poll(&answer, 1, 1) == 0 && std::chrono::steady_clock::now() < limit) accept();
  ASSERT_EQ(*dialer->try_connect(now + 2 * options_.attempt_time_max), nullptr);
  EXPECT_EQ(dialer->next_deadline(), deadline) << "the dialer must wait for the confirmation";
}

TEST_F(DialerTest, SaysAtItsDeadlineThatTheConfirmationIsMissing) {
  options_.addresses = {v4_};
  const TimePoint now = std::chrono::steady_clock::now();
  const TimePoint deadline = now + std::chrono::hours(1);
  const auto dialer = *Dialer::start(*context_, options_, now, deadline);
  const TimePoint limit = test_deadline();
  while (dialer->next_deadline() != deadline && std::chrono::steady_clock::now() < limit) {
    accept();
    ASSERT_EQ(*dialer->try_connect(now), nullptr);
  }
  EXPECT_THAT(dialer->try_connect(deadline).status().message(),
              HasSubstr("(tried 1 times): it has not confirmed the connection yet"));
}

// While a forked child has a copy of a socket, the kernel does not remove the socket from the epoll
// instance when we close it.
TEST_F(DialerTest, RemovesAttemptsEvenIfAForkedChildHasCopies) {
  const SilentAddress silent_address;
  options_.addresses = {silent_address.listen_address()};
  const TimePoint now = std::chrono::steady_clock::now();
  const auto dialer = *Dialer::start(*context_, options_, now, now + std::chrono::hours(1));
  ASSERT_EQ(*dialer->try_connect(now), nullptr);
  const Descriptor accepted(::accept(silent_address.socket.get(), nullptr, nullptr));
  const ForkedChild child([] {});
  ASSERT_EQ(*dialer->try_connect(now + options_.attempt_time_max),
            nullptr);  // the dialer gives up the attempt
  ASSERT_EQ(::send(accepted.get(), "x", 1, MSG_NOSIGNAL), 1);
  EXPECT_FALSE(is_readable(dialer->descriptor(), 100));
}

TEST_F(DialerTest, NeedsAnAddressAndADescriptor) {
  EXPECT_THAT(dial(*context_).status().message(),
              HasSubstr("worker 0 offers no address to connect to"));
  options_.addresses = {v4_};
  const NoFreeDescriptors no_free_descriptors;
  EXPECT_EQ(dial(*context_).status().code(), StatusCode::kStop);
}

}  // namespace
}  // namespace farandole
