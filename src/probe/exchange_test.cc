#include "probe/exchange.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "network/simulated_connection_in_test.h"

namespace farandole {
namespace {

using std::chrono::milliseconds;

// Both ends of an exchange over a simulated wire, with a clock that moves in steps.
struct Exchange {
  explicit Exchange(const ExchangeOptions& options, std::uint64_t seed = 1)
      : wire(std::make_shared<SimulatedWire>(seed)),
        dialing(wire, 0),
        accepting(wire, 1),
        measuring(dialing, options, now),
        answering(accepting) {}

  // Returns the measurement, or empty if there is none after `steps_max` steps.
  std::optional<Measurement> run(Duration step, int steps_max = 100'000) {
    for (int i = 0; i < steps_max; ++i) {
      now += step;
      auto measured = measuring.advance(now);
      EXPECT_TRUE(measured.ok()) << measured.status().message();
      if (!measured.ok() || *measured) return measured.ok() ? *measured : std::nullopt;
      const Status answered = answering.advance(now);
      EXPECT_TRUE(answered.ok()) << answered.message();
    }
    return std::nullopt;
  }

  std::shared_ptr<SimulatedWire> wire;
  SimulatedConnection dialing;
  SimulatedConnection accepting;
  TimePoint now{};
  MeasuringEnd measuring;
  AnsweringEnd answering;
};

TEST(Exchange, MeasuresUnderAnyInterleaving) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Exchange exchange({.pings = 5, .stream_bytes = 3 << 20, .stream_time = std::chrono::hours(1)},
                      seed);
    const auto measured = exchange.run(std::chrono::microseconds(10));
    ASSERT_TRUE(measured) << "seed " << seed;
    EXPECT_GT(measured->round_trip_seconds, 0) << "seed " << seed;
    EXPECT_GT(measured->bytes_per_second, 0) << "seed " << seed;
  }
}

TEST(Exchange, ASlowStreamEndsAtItsTimeLimit) {
  Exchange exchange(
      {.pings = 1, .stream_bytes = std::uint64_t{1} << 40U, .stream_time = milliseconds(250)});
  const auto measured = exchange.run(milliseconds(1), 10'000);
  ASSERT_TRUE(measured);
  EXPECT_GT(measured->bytes_per_second, 0);
  EXPECT_LT(exchange.now, TimePoint() + milliseconds(5000));
}

TEST(Exchange, AnswersAtTheTimeLimitEvenIfNoMoreBytesArrive) {
  Exchange exchange({.pings = 1, .stream_bytes = 1 << 20, .stream_time = milliseconds(250)});
  while (exchange.answering.deadline() == TimePoint::max()) {
    exchange.now += milliseconds(1);
    ASSERT_TRUE(exchange.measuring.advance(exchange.now).ok());
    ASSERT_TRUE(exchange.answering.advance(exchange.now).ok());
  }
  exchange.now = exchange.answering.deadline();
  ASSERT_TRUE(exchange.answering.advance(exchange.now).ok());
  EXPECT_EQ(exchange.answering.deadline(), TimePoint::max());
}

TEST(Exchange, AnUnexpectedMessageIsAnError) {
  const auto wire = std::make_shared<SimulatedWire>(1);
  SimulatedConnection dialing(wire, 0);
  SimulatedConnection accepting(wire, 1);
  MessageStream messages(dialing);
  AnsweringEnd answering(accepting);
  messages.queue({.kind = 77});
  Status answered;
  for (int i = 0; i < 10'000 && answered.ok(); ++i) {
    ASSERT_TRUE(messages.flush().ok());
    answered = answering.advance(TimePoint());
  }
  EXPECT_NE(answered.message().find("kind 77"), std::string::npos) << answered.message();
}

}  // namespace
}  // namespace farandole
