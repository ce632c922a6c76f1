// Exchange: the messages by which two probes measure a connection: small ones for the round trip,
// and a stream for the rate. No function blocks or reads a clock.
//
// A message has three numbers of 64 bits: its kind and two values. The dialing end sends kPing and
// waits for kPong. It does this ExchangeOptions::pings times. Then it sends kStream with the number
// of bytes and the time limit in nanoseconds, followed by the bytes. When all bytes have arrived,
// or at the time limit, the other end answers kRate with the bytes and the nanoseconds that it has
// counted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/time_point.h"
#include "farandole/status.h"
#include "network/connection.h"

namespace farandole {

struct ExchangeOptions {
  int pings = 16;
  std::uint64_t stream_bytes = std::uint64_t{128} << 20U;
  Duration stream_time = std::chrono::milliseconds(250);
};

struct Measurement {
  double round_trip_seconds = 0;  // the median
  double bytes_per_second = 0;    // 0 if all bytes arrived at the same time
};

// One end of a connection on which whole messages travel. The connection is borrowed.
class MessageStream {
 public:
  struct Message {
    std::uint64_t kind = 0;
    std::uint64_t first = 0;
    std::uint64_t second = 0;
  };

  explicit MessageStream(Connection& connection) : connection_(connection) {}

  void queue(const Message& message);
  // Sends as many bytes of the queued messages as the connection takes now. All functions return
  // the errors of the connection.
  Status flush();
  bool has_unsent() const { return sent_bytes_ < unsent_.size() || connection_.has_unsent(); }
  // Returns the next message if it is complete.
  Result<std::optional<Message>> receive();

 private:
  static constexpr std::size_t kMessageBytes = 24;

  Connection& connection_;
  Bytes unsent_;
  std::size_t sent_bytes_ = 0;
  std::array<std::byte, kMessageBytes> received_message_{};
  std::size_t received_bytes_ = 0;
};

// The dialing end.
class MeasuringEnd {
 public:
  MeasuringEnd(Connection& connection, const ExchangeOptions& options, TimePoint now);

  // Does all that can be done now. Returns the result when it is complete. Errors: those of the
  // connection; kRebuildGroup if the other end sends a message that it may not send at this point.
  Result<std::optional<Measurement>> advance(TimePoint now);
  bool wants_to_send() const { return is_streaming() || messages_.has_unsent(); }
  // Whether all small messages came back, so that only the stream is missing.
  bool has_round_trip() const {
    return round_trips_.size() == static_cast<std::size_t>(options_.pings);
  }

 private:
  bool is_streaming() const {
    return has_round_trip() && stream_bytes_sent_ < options_.stream_bytes;
  }
  void queue_ping(TimePoint now);
  Status send_stream();

  Connection& connection_;
  ExchangeOptions options_;
  MessageStream messages_;
  std::vector<Duration> round_trips_;
  TimePoint ping_sent_at_;
  Bytes piece_;  // sent again and again as the stream
  std::uint64_t stream_bytes_sent_ = 0;
};

// The accepting end: answers until the other end closes the connection.
class AnsweringEnd {
 public:
  explicit AnsweringEnd(Connection& connection) : connection_(connection), messages_(connection) {}

  // Does all that can be done now. The connection must be closed after an error. Errors: those of
  // the connection; kRebuildGroup if the other end sends a message that it may not send at this
  // point.
  Status advance(TimePoint now);
  bool wants_to_send() const { return messages_.has_unsent(); }
  // advance() must be called at this time even if nothing arrives. TimePoint::max() means that this
  // is not necessary.
  TimePoint deadline() const { return stream_ ? stream_->deadline : TimePoint::max(); }

 private:
  struct Stream {
    std::uint64_t bytes_left = 0;
    std::uint64_t bytes_counted = 0;
    Duration time_max{};
    std::optional<TimePoint> begin{};  // when the first bytes, which do not count, arrived
    TimePoint deadline = TimePoint::max();
  };
  Status handle(const MessageStream::Message& message);
  Result<bool> receive_stream(TimePoint now);

  Connection& connection_;
  MessageStream messages_;
  std::optional<Stream> stream_;
  Bytes piece_;
  bool is_done_ = false;  // the rate was sent; bytes that still arrive are dropped
};

}  // namespace farandole
