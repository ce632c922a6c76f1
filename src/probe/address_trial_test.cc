#include "probe/address_trial.h"

#include <gtest/gtest.h>

#include <list>

#include "network/tcp/job_in_test.h"

namespace farandole {
namespace {

// A listener like that of probe 1, and its answers.
struct OtherProbe {
  explicit OtherProbe(char secret) : context(context_of(secret)) {
    auto opened =
        TcpListener::open(*context, {.addresses = {address_of("127.0.0.1:0")},
                                     .acceptance = {.job = 1, .self = {Role::kLauncher, 1}}});
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    listener = *std::move(opened);
  }
  void advance() {
    const TimePoint time = std::chrono::steady_clock::now();
    for (;;) {
      auto accepted = listener->try_accept(time);
      ASSERT_TRUE(accepted.ok());
      if (*accepted == nullptr) break;
      connections.push_back(*std::move(accepted));
      ends.emplace_back(*connections.back());
    }
    for (AnsweringEnd& end : ends) (void)end.advance(time);
  }
  SocketAddress address() const { return listener->addresses().front(); }

  std::unique_ptr<TlsContext> context;
  std::unique_ptr<TcpListener> listener;
  std::list<std::unique_ptr<Connection>> connections;
  std::list<AnsweringEnd> ends;
};

Attempt attempt_at(const SocketAddress& address, OtherProbe* other, const TrialOptions& options,
                   std::uint32_t to = 1) {
  const auto context = context_of('a');
  AddressTrial trial(*context, link_between_probes(0, to), address, options,
                     std::chrono::steady_clock::now());
  const TimePoint limit = test_deadline();
  while (std::chrono::steady_clock::now() < limit) {
    if (const auto attempt = trial.advance(std::chrono::steady_clock::now())) return *attempt;
    if (other != nullptr) other->advance();
  }
  ADD_FAILURE() << "the trial does not end";
  return {};
}

TEST(AddressTrial, ReachesAnotherProbe) {
  OtherProbe other('a');
  EXPECT_EQ(attempt_at(other.address(), &other, {}),
            (Attempt{.to = 1, .address = other.address().text()}));
}

TEST(AddressTrial, MeasuresAConnection) {
  OtherProbe other('a');
  const Attempt attempt = attempt_at(other.address(), &other, {.measures = true});
  EXPECT_EQ(attempt.failure, ConnectFailure::kNone) << attempt.error;
  EXPECT_GT(attempt.round_trip_seconds, 0);
  EXPECT_GT(attempt.bytes_per_second, 0);
}

TEST(AddressTrial, APortWithoutAProcessRefuses) {
  SocketAddress address;
  {
    const OtherProbe other('a');
    address = other.address();
  }
  const Attempt attempt = attempt_at(address, nullptr, {});
  EXPECT_EQ(attempt.failure, ConnectFailure::kRefused) << attempt.error;
}

TEST(AddressTrial, AProcessThatIsNotTheProbeTurnsUsAway) {
  OtherProbe stranger('b');
  EXPECT_EQ(attempt_at(stranger.address(), &stranger, {}).failure, ConnectFailure::kTurnedAway);
  OtherProbe other('a');  // we look for probe 2
  EXPECT_EQ(attempt_at(other.address(), &other, {}, 2).failure, ConnectFailure::kTurnedAway);
}

TEST(AddressTrial, AConnectionWithoutAnswersStalls) {
  OtherProbe other('a');
  const Attempt attempt =
      attempt_at(other.address(), nullptr, {.connect_time_max = std::chrono::milliseconds(500)});
  EXPECT_EQ(attempt.failure, ConnectFailure::kStalled) << attempt.error;
}

TEST(AddressTrial, FailuresAreClassifiedByTheirError) {
  EXPECT_EQ(classify_failure("connect: Connection refused (no process listens there)", false),
            ConnectFailure::kRefused);
  EXPECT_EQ(classify_failure("connect: No route to host", false), ConnectFailure::kNoRoute);
  EXPECT_EQ(classify_failure("connect: Network is unreachable", false), ConnectFailure::kNoRoute);
  EXPECT_EQ(classify_failure("connect: Operation not permitted", false), ConnectFailure::kNoRoute);
  EXPECT_EQ(classify_failure("receive: Connection timed out", false), ConnectFailure::kNoAnswer);
  EXPECT_EQ(classify_failure("receive: Connection reset by peer", true),
            ConnectFailure::kTurnedAway);
  EXPECT_EQ(classify_failure("Too many open files", false), ConnectFailure::kOther);
}

}  // namespace
}  // namespace farandole
