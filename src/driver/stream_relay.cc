#include "driver/stream_relay.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <span>

#include "base/format.h"
#include "base/try.h"

namespace farandole {
namespace {

// While more bytes than this wait for the connection, the sources are not read. So a signal to the
// job never waits behind much data.
constexpr std::size_t kOutgoingBytesMax = 256 << 10;
constexpr std::size_t kReadBytesMax = 256 << 10;  // how much one read takes from the connection

// What our poller reports. The low half of its tag is the index of a stream.
enum class Event : std::uint64_t { kFromPeer, kToPeer, kSource, kSink };
constexpr std::uint64_t tag_of(Event event, std::uint64_t index = 0) {
  return static_cast<std::uint64_t>(event) << 32U | index;
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// The number of bytes that can be read now from a pipe or a socket.
std::uint64_t readable_bytes(const Descriptor& descriptor) {
  int count = 0;
  return ::ioctl(descriptor.get(), FIONREAD, &count) == 0 && count > 0
             ? static_cast<std::uint64_t>(count)
             : 0;
}

Status set_non_blocking(const Descriptor& descriptor) {
  const int flags = ::fcntl(descriptor.get(), F_GETFL);
  if (flags >= 0 && ::fcntl(descriptor.get(), F_SETFL, flags | O_NONBLOCK) == 0) return {};
  return Status::stop(format_text("descriptor {} cannot be made non-blocking", descriptor.get()));
}

ssize_t read_some(const Descriptor& descriptor, std::span<char> buffer) {
  ssize_t count = -1;
  do {
    count = ::read(descriptor.get(), buffer.data(), buffer.size());
  } while (count < 0 && errno == EINTR);
  return count;
}

// Closes a pipe. For a socket, ends only our direction, because the other direction may go on.
void close_sink(Descriptor& sink) {
  ::shutdown(sink.get(), SHUT_WR);
  sink.reset();
}

}  // namespace

void StreamRelay::Queue::pop(std::size_t count) {
  first_unsent_ += count;
  if (first_unsent_ < bytes_.size() && first_unsent_ < kOutgoingBytesMax) return;
  bytes_.erase(0, first_unsent_);
  first_unsent_ = 0;
}

StreamRelay::StreamRelay(Poller poller, Descriptor from_peer, Descriptor to_peer)
    : poller_(std::move(poller)),
      from_peer_(std::move(from_peer)),
      to_peer_(std::move(to_peer)),
      buffer_(kReadBytesMax) {}

Result<StreamRelay> StreamRelay::create(Descriptor from_peer, Descriptor to_peer,
                                        std::vector<RelayStream> streams,
                                        std::string_view first_bytes) {
  FARANDOLE_TRY_ASSIGN(Poller poller, Poller::create());
  FARANDOLE_TRY(set_non_blocking(from_peer));
  FARANDOLE_TRY(set_non_blocking(to_peer));
  StreamRelay relay(std::move(poller), std::move(from_peer), std::move(to_peer));
  relay.outgoing_.push(first_bytes);
  if (!relay.poller_.add(relay.from_peer_.get(), Poller::Interest::kReading,
                         tag_of(Event::kFromPeer)))
    return Status::stop(
        "the connection to a host cannot be watched; the limit is in "
        "/proc/sys/fs/epoll/max_user_watches");
  for (RelayStream& stream : streams) {
    if (stream.sink.valid()) FARANDOLE_TRY(set_non_blocking(stream.sink));
    relay.streams_.push_back({.ends = std::move(stream)});
  }
  relay.update_watches();
  return relay;
}

void StreamRelay::serve() {
  for (const std::uint64_t tag : poller_.wait(std::chrono::steady_clock::now())) {
    const std::size_t index = tag & 0xFFFFFFFFU;
    switch (static_cast<Event>(tag >> 32U)) {
      case Event::kFromPeer:
        read_peer();
        break;
      case Event::kToPeer:
        break;
      case Event::kSource:
        read_source(index);
        break;
      case Event::kSink:
        write_sink(index);
        break;
    }
  }
  for (std::size_t i = 0; i < streams_.size() && sources_are_complete_; ++i)
    if (streams_[i].held_bytes.empty() && readable_bytes(streams_[i].ends.source) == 0)
      end_source(i);
  for (Stream& stream : streams_) release_held_bytes(stream);
  write_peer();
  update_watches();
}

void StreamRelay::read_peer() {
  const ssize_t count = read_some(from_peer_, buffer_);
  if (count < 0 && would_block(errno)) return;
  if (count <= 0) return handle_peer_loss({});
  reader_.push({buffer_.data(), static_cast<std::size_t>(count)});
  for (;;) {
    const auto frame = reader_.next();
    if (!frame.ok()) return handle_peer_loss(frame.status());
    if (!*frame) return;
    if (const Status handled = handle(**frame); !handled.ok()) return handle_peer_loss(handled);
  }
}

Status StreamRelay::handle(const RelayFrame& frame) {
  const auto stream = std::ranges::find(streams_, frame.stream,
                                        [](const Stream& candidate) { return candidate.ends.id; });
  if (stream == streams_.end())
    return Status::stop(format_text("a frame of the unknown stream {} has arrived", frame.stream));
  switch (frame.kind) {
    case RelayFrame::Kind::kData:
      return receive(*stream, frame.payload);
    case RelayFrame::Kind::kEnd:
      stream->has_ended = true;
      write_sink(static_cast<std::size_t>(stream - streams_.begin()));
      return {};
    case RelayFrame::Kind::kCredit:
      stream->credit = std::min(stream->credit + frame.count, kRelayWindowBytes);
      return {};
  }
  return {};
}

Status StreamRelay::receive(Stream& stream, std::string_view bytes) {
  stream.bytes_received += bytes.size();
  if (stream.has_ended || stream.bytes_received - stream.bytes_credited > kRelayWindowBytes)
    return Status::stop(
        format_text("more bytes than allowed have arrived on stream {}", stream.ends.id));
  const std::size_t index = static_cast<std::size_t>(&stream - streams_.data());
  if (stream.ends.consume && !stream.ends.follows_others) {
    stream.ends.consume(bytes);
    count_written(stream, bytes.size());
  } else if (stream.ends.consume) {
    stream.held_bytes.push_back({std::string(bytes), marks_of_sinks(index)});
  } else if (stream.ends.sink.valid()) {
    stream.pending_bytes.push(bytes);
    write_sink(index);
  } else {
    count_written(stream, bytes.size());  // the reader is gone
  }
  return {};
}

void StreamRelay::write_peer() {
  while (to_peer_.valid() && outgoing_.size() > 0) {
    const std::string_view front = outgoing_.front();
    const ssize_t count = ::write(to_peer_.get(), front.data(), front.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && would_block(errno)) return;
    if (count < 0) return end_sending();
    outgoing_.pop(static_cast<std::size_t>(count));
  }
}

// Call it when the peer does not read any more. Bytes that the peer has sent may still arrive.
void StreamRelay::end_sending() {
  if (to_peer_is_watched_) poller_.remove(to_peer_.get());
  to_peer_is_watched_ = false;
  to_peer_.reset();
  outgoing_.pop(outgoing_.size());
  for (std::size_t i = 0; i < streams_.size(); ++i) end_source(i);
}

// The relay still writes the bytes that arrived before the loss. Then all sinks end.
void StreamRelay::handle_peer_loss(Status why) {
  if (peer_is_gone_) return;
  peer_is_gone_ = true;
  failure_ = std::move(why);
  poller_.remove(from_peer_.get());
  from_peer_.reset();
  end_sending();
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    streams_[i].has_ended = true;
    write_sink(i);
  }
}

void StreamRelay::peer_process_ended() {
  while (!peer_is_gone_) {
    const std::uint64_t bytes_left = readable_bytes(from_peer_);
    if (bytes_left == 0)
      handle_peer_loss({});
    else
      read_peer();
  }
  for (Stream& stream : streams_) release_held_bytes(stream);
  update_watches();
}

void StreamRelay::end_sources() {
  sources_are_complete_ = true;
  serve();
}

bool StreamRelay::has_sent_everything() const {
  return outgoing_.size() == 0 && std::ranges::none_of(streams_, [](const Stream& stream) {
           return stream.ends.source.valid();
         });
}

bool StreamRelay::has_written_everything() const {
  return peer_is_gone_ && std::ranges::all_of(streams_, [](const Stream& stream) {
           return stream.pending_bytes.size() == 0 &&
                  (!stream.ends.consume || stream.held_bytes.empty());
         });
}

bool StreamRelay::may_read(const Stream& stream) const {
  return stream.ends.source.valid() && stream.credit > 0 && outgoing_.size() < kOutgoingBytesMax &&
         (!stream.ends.follows_others || stream.held_bytes.empty());
}

void StreamRelay::read_source(std::size_t index) {
  Stream& stream = streams_[index];
  if (!may_read(stream)) return;
  const std::size_t bytes_max = std::min<std::size_t>(kRelayPayloadBytesMax, stream.credit);
  const ssize_t count = read_some(stream.ends.source, std::span(buffer_).first(bytes_max));
  if (count < 0 && would_block(errno)) return;
  if (count <= 0) return end_source(index);
  const std::string_view bytes(buffer_.data(), static_cast<std::size_t>(count));
  if (stream.ends.follows_others)
    stream.held_bytes.push_back({std::string(bytes), marks_of_sources(index)});
  else
    send(stream, bytes);
}

void StreamRelay::end_source(std::size_t index) {
  Stream& stream = streams_[index];
  if (!stream.ends.source.valid()) return;
  if (stream.source_is_watched) poller_.remove(stream.ends.source.get());
  stream.source_is_watched = false;
  stream.ends.source.reset();
  if (to_peer_.valid()) {
    std::string frame;
    append_end(frame, stream.ends.id);
    outgoing_.push(frame);
  }
}

void StreamRelay::send(Stream& stream, std::string_view bytes) {
  std::string frame;
  append_data(frame, stream.ends.id, bytes);
  outgoing_.push(frame);
  stream.bytes_sent += bytes.size();
  stream.credit -= bytes.size();
}

void StreamRelay::write_sink(std::size_t index) {
  Stream& stream = streams_[index];
  while (stream.ends.sink.valid() && stream.pending_bytes.size() > 0) {
    const std::string_view front = stream.pending_bytes.front();
    const ssize_t count = ::write(stream.ends.sink.get(), front.data(), front.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && would_block(errno)) return;
    if (count < 0) return drop_sink(index);
    stream.pending_bytes.pop(static_cast<std::size_t>(count));
    count_written(stream, static_cast<std::size_t>(count));
  }
  if (!stream.has_ended || !stream.ends.sink.valid()) return;
  if (stream.sink_is_watched) poller_.remove(stream.ends.sink.get());
  stream.sink_is_watched = false;
  close_sink(stream.ends.sink);
}

// The reader of the sink is gone. Bytes that still arrive are dropped, so that the sender is not
// blocked.
void StreamRelay::drop_sink(std::size_t index) {
  Stream& stream = streams_[index];
  if (stream.sink_is_watched) poller_.remove(stream.ends.sink.get());
  stream.sink_is_watched = false;
  stream.ends.sink.reset();
  const std::size_t dropped = stream.pending_bytes.size();
  stream.pending_bytes.pop(dropped);
  count_written(stream, dropped);
}

void StreamRelay::count_written(Stream& stream, std::size_t count) {
  stream.bytes_written += count;
  const std::uint64_t credit = stream.bytes_written - stream.bytes_credited;
  if (!to_peer_.valid() || credit < kRelayWindowBytes / 4) return;
  std::string frame;
  append_credit(frame, stream.ends.id, static_cast<std::uint32_t>(credit));
  outgoing_.push(frame);
  stream.bytes_credited = stream.bytes_written;
}

std::vector<StreamRelay::Mark> StreamRelay::marks_of_sources(std::size_t excluded_stream) const {
  std::vector<Mark> marks;
  for (std::size_t i = 0; i < streams_.size(); ++i)
    if (i != excluded_stream && streams_[i].ends.source.valid())
      marks.push_back({i, streams_[i].bytes_sent + readable_bytes(streams_[i].ends.source)});
  return marks;
}

std::vector<StreamRelay::Mark> StreamRelay::marks_of_sinks(std::size_t excluded_stream) const {
  std::vector<Mark> marks;
  for (std::size_t i = 0; i < streams_.size(); ++i)
    if (i != excluded_stream && streams_[i].ends.sink.valid())
      marks.push_back({i, streams_[i].bytes_received});
  return marks;
}

bool StreamRelay::is_sent(const Mark& mark) const {
  const Stream& stream = streams_[mark.stream];
  return !stream.ends.source.valid() || stream.bytes_sent >= mark.position;
}

bool StreamRelay::is_written(const Mark& mark) const {
  const Stream& stream = streams_[mark.stream];
  return !stream.ends.sink.valid() || stream.bytes_written >= mark.position;
}

void StreamRelay::release_held_bytes(Stream& stream) {
  while (!stream.held_bytes.empty()) {
    const HeldBytes& oldest = stream.held_bytes.front();
    const bool is_received = static_cast<bool>(stream.ends.consume);
    const bool may_release = std::ranges::all_of(oldest.marks, [&](const Mark& mark) {
      return is_received ? is_written(mark) : is_sent(mark);
    });
    if (!may_release) return;
    const HeldBytes released = std::move(stream.held_bytes.front());
    stream.held_bytes.pop_front();
    if (is_received) {
      stream.ends.consume(released.bytes);
      count_written(stream, released.bytes.size());
    } else if (to_peer_.valid()) {
      send(stream, released.bytes);
    }
  }
}

bool StreamRelay::set_watched(int descriptor, bool& is_watched, bool is_wanted,
                              Poller::Interest interest, std::uint64_t tag) {
  if (is_wanted == is_watched) return true;
  if (!is_wanted) poller_.remove(descriptor);
  is_watched = is_wanted && poller_.add(descriptor, interest, tag);
  return is_watched == is_wanted;
}

void StreamRelay::update_watches() {
  bool watches_all = true;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    Stream& stream = streams_[i];
    if (stream.ends.source.valid())
      watches_all &=
          set_watched(stream.ends.source.get(), stream.source_is_watched, may_read(stream),
                      Poller::Interest::kReading, tag_of(Event::kSource, i));
    if (stream.ends.sink.valid())
      watches_all &= set_watched(stream.ends.sink.get(), stream.sink_is_watched,
                                 stream.pending_bytes.size() > 0, Poller::Interest::kWriting,
                                 tag_of(Event::kSink, i));
  }
  if (to_peer_.valid())
    watches_all &= set_watched(to_peer_.get(), to_peer_is_watched_, outgoing_.size() > 0,
                               Poller::Interest::kWriting, tag_of(Event::kToPeer));
  if (watches_all) return;
  handle_peer_loss(
      Status::stop("the streams of the workers cannot be watched; the limit is in "
                   "/proc/sys/fs/epoll/max_user_watches"));
}

}  // namespace farandole
