#include "probe/exchange.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>

#include "base/format.h"
#include "base/try.h"

namespace farandole {
namespace {

constexpr std::uint64_t kPing = 1;
constexpr std::uint64_t kPong = 2;
constexpr std::uint64_t kStream = 3;
constexpr std::uint64_t kRate = 4;

constexpr std::size_t kPieceBytes = 256 << 10;
// After this many pieces, the caller serves its other connections before this one goes on.
constexpr int kPiecesAtOnce = 32;

Status unexpected_message_error(const MessageStream::Message& message) {
  return Status::rebuild_group(
      format_text("received a message of kind {} instead of an answer; install the same version of "
                  "Farandole on all hosts",
                  message.kind));
}

std::uint64_t nanoseconds(Duration time) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
}

double seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

void MessageStream::queue(const Message& message) {
  ByteWriter writer;
  writer.put(message.kind);
  writer.put(message.first);
  writer.put(message.second);
  const Bytes bytes = writer.take();
  unsent_.insert(unsent_.end(), bytes.begin(), bytes.end());
}

Status MessageStream::flush() {
  if (!has_unsent()) return {};
  FARANDOLE_TRY_ASSIGN(const std::size_t count,
                       connection_.try_send({}, std::span(unsent_).subspan(sent_bytes_)));
  sent_bytes_ += count;
  if (sent_bytes_ < unsent_.size()) return {};
  unsent_.clear();
  sent_bytes_ = 0;
  return {};
}

Result<std::optional<MessageStream::Message>> MessageStream::receive() {
  FARANDOLE_TRY_ASSIGN(
      const std::size_t count,
      connection_.try_receive(std::span(received_message_).subspan(received_bytes_)));
  received_bytes_ += count;
  if (received_bytes_ < received_message_.size()) return std::optional<Message>();
  received_bytes_ = 0;
  ByteReader reader(received_message_);
  Message message;
  message.kind = reader.get<std::uint64_t>();
  message.first = reader.get<std::uint64_t>();
  message.second = reader.get<std::uint64_t>();
  return std::optional(message);
}

MeasuringEnd::MeasuringEnd(Connection& connection, const ExchangeOptions& options, TimePoint now)
    : connection_(connection), options_(options), messages_(connection) {
  queue_ping(now);
}

void MeasuringEnd::queue_ping(TimePoint now) {
  ping_sent_at_ = now;
  messages_.queue({.kind = kPing});
}

Result<std::optional<Measurement>> MeasuringEnd::advance(TimePoint now) {
  FARANDOLE_TRY(messages_.flush());
  FARANDOLE_TRY_ASSIGN(const auto message, messages_.receive());
  if (message && !has_round_trip() && message->kind == kPong) {
    round_trips_.push_back(now - ping_sent_at_);
    if (has_round_trip())
      messages_.queue({.kind = kStream,
                       .first = options_.stream_bytes,
                       .second = nanoseconds(options_.stream_time)});
    else
      queue_ping(now);
    FARANDOLE_TRY(messages_.flush());
  } else if (message && has_round_trip() && message->kind == kRate) {
    const auto median = round_trips_.begin() + options_.pings / 2;
    std::ranges::nth_element(round_trips_, median);
    const double time = static_cast<double>(message->second) / 1e9;
    return std::optional(
        Measurement{.round_trip_seconds = seconds(*median),
                    .bytes_per_second = time > 0 ? static_cast<double>(message->first) / time : 0});
  } else if (message) {
    return unexpected_message_error(*message);
  }
  FARANDOLE_TRY(send_stream());
  return std::optional<Measurement>();
}

Status MeasuringEnd::send_stream() {
  if (is_streaming()) piece_.resize(kPieceBytes);
  for (int piece = 0; piece < kPiecesAtOnce && is_streaming(); ++piece) {
    if (messages_.has_unsent()) return messages_.flush();
    const auto bytes_left = options_.stream_bytes - stream_bytes_sent_;
    const auto bytes = std::span(piece_).first(std::min<std::uint64_t>(bytes_left, kPieceBytes));
    FARANDOLE_TRY_ASSIGN(const std::size_t count, connection_.try_send({}, bytes));
    stream_bytes_sent_ += count;
    if (count < bytes.size()) break;
  }
  return {};
}

Status AnsweringEnd::advance(TimePoint now) {
  for (int piece = 0; piece < kPiecesAtOnce; ++piece) {
    FARANDOLE_TRY(messages_.flush());
    if (stream_) {
      FARANDOLE_TRY_ASSIGN(const bool has_more, receive_stream(now));
      if (!has_more) return messages_.flush();
    } else if (is_done_) {
      FARANDOLE_TRY_ASSIGN(const std::size_t dropped, connection_.try_receive(piece_));
      if (dropped == 0) return {};
    } else {
      FARANDOLE_TRY_ASSIGN(const auto message, messages_.receive());
      if (!message) return {};
      FARANDOLE_TRY(handle(*message));
    }
  }
  return {};
}

Status AnsweringEnd::handle(const MessageStream::Message& message) {
  if (message.kind == kPing) {
    messages_.queue({.kind = kPong});
    return messages_.flush();
  }
  if (message.kind != kStream) return unexpected_message_error(message);
  piece_.resize(kPieceBytes);
  const std::chrono::nanoseconds time(static_cast<std::int64_t>(message.second));
  stream_ = Stream{.bytes_left = message.first, .time_max = time};
  return {};
}

// Returns whether the caller should call this function again without waiting.
Result<bool> AnsweringEnd::receive_stream(TimePoint now) {
  Stream& stream = *stream_;
  const auto free_part =
      std::span(piece_).first(std::min<std::uint64_t>(stream.bytes_left, kPieceBytes));
  FARANDOLE_TRY_ASSIGN(const std::size_t count, connection_.try_receive(free_part));
  stream.bytes_left -= count;
  if (!stream.begin && count > 0) {
    stream.begin = now;
    stream.deadline = now + stream.time_max;
  } else {
    stream.bytes_counted += count;
  }
  const bool is_complete = stream.bytes_left == 0 || now >= stream.deadline;
  if (!is_complete) return count > 0;
  messages_.queue({.kind = kRate,
                   .first = stream.bytes_counted,
                   .second = stream.begin ? nanoseconds(now - *stream.begin) : 0});
  stream_.reset();
  is_done_ = true;
  return false;
}

}  // namespace farandole
