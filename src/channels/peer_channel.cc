#include "channels/peer_channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/try.h"
#include "collective/lane.h"
#include "transport/shm/doorbells.h"

namespace farandole {
namespace {

// The largest number of bytes in a data frame. A short frame waits for the end of the data frame
// that is being sent, so this number must be small.
constexpr std::size_t kDataFrameBytesMax = 256 * 1024;
// If this many early bytes of a group are kept, the channel may stop receiving; see is_full().
constexpr std::size_t kEarlyBytesMax = std::size_t{4} << 20;  // more than two windows
// Delivered bytes are erased from Stream::early_data if their number exceeds this limit and also
// the number of bytes that are not delivered yet.
constexpr std::size_t kTakenBytesMax = std::size_t{1} << 20;
// The largest number of envelopes that wait for the connection. This limit bounds the memory for
// copies of envelopes.
constexpr std::size_t kEnvelopesMax = 16;
// The largest number of received envelopes that are kept until the mailbox takes them.
constexpr std::size_t kReceivedEnvelopesMax = 64;
// About the largest number of bytes that one advance() moves in each direction.
constexpr std::size_t kBytesPerRound = std::size_t{1} << 20;

// Shortens the reason, because the payload of the frames that carry a reason has a size limit.
Bytes encode_rank_and_reason(int rank, const std::string& reason) {
  ByteWriter writer;
  writer.put(std::int32_t{rank});
  writer.put_text(reason.substr(0, kLeaveReasonBytesMax));
  return writer.take();
}

// Removes and returns the first element; returns an empty value if there is none.
template <class T>
std::optional<T> take_first(std::deque<T>& elements) {
  if (elements.empty()) return std::nullopt;
  auto element = std::move(elements.front());
  elements.pop_front();
  return element;
}

// Returns how many steps `step` comes after `base`; negative if `step` is older.
std::int64_t steps_between(const StepIdentity& base, const StepIdentity& step) {
  if (step.generation != base.generation)
    return std::int64_t{step.generation} - std::int64_t{base.generation};
  return static_cast<std::int32_t>(step.sequence - base.sequence);
}

}  // namespace

FrameHeader PeerChannel::header_of(FrameType type, std::size_t length, GroupId group,
                                   const StepIdentity& step) const {
  return {.type = type,
          .epoch = epoch_,
          .group = group,
          .generation = step.generation,
          .step = step.sequence,
          .length = static_cast<std::uint32_t>(length)};
}

void PeerChannel::queue(FrameType type, GroupId group, const StepIdentity& step, Bytes payload) {
  if (said_goodbye_ || is_over_) return;
  short_frames_.push_back({header_of(type, payload.size(), group, step), std::move(payload)});
}

void PeerChannel::send_message(GroupId group, Bytes message) {
  queue(FrameType::kControl, group, {.generation = 0}, std::move(message));
}

std::optional<Bytes> PeerChannel::next_message(GroupId group) {
  return take_first(streams_[group].messages);
}

bool PeerChannel::try_send_envelope(std::span<const std::byte> first,
                                    std::span<const std::byte> second) {
  if (said_goodbye_ || is_over_ || envelopes_.size() >= kEnvelopesMax) return false;
  Bytes payload;
  payload.reserve(first.size() + second.size());
  payload.insert(payload.end(), first.begin(), first.end());
  payload.insert(payload.end(), second.begin(), second.end());
  envelopes_.push_back({header_of(FrameType::kEnvelope, payload.size()), std::move(payload)});
  return true;
}

std::optional<Bytes> PeerChannel::next_envelope() { return take_first(received_envelopes_); }

void PeerChannel::send_entry(GroupId group, const StepIdentity& step,
                             std::span<const std::byte> note) {
  ByteWriter writer;
  writer.put(step.id);
  Bytes payload = writer.take();
  payload.insert(payload.end(), note.begin(), note.end());
  queue(FrameType::kEnter, group, step, std::move(payload));
  entered_group_ = group;
  entered_step_ = step;
}

const PeerEntries::Entry* PeerChannel::entry(GroupId group, const StepIdentity& step) const {
  const auto stream = streams_.find(group);
  if (stream == streams_.end()) return nullptr;
  return stream->second.entries.find(step.generation, step.sequence);
}

void PeerChannel::begin(GroupId group, const StepIdentity& step) {
  auto& stream = streams_[group];
  CHECK(stream.to_send.empty() && stream.to_receive.empty(), "the data of a step has moved");
  stream.step = step;
  stream.sent_bytes = 0;
  stream.received_bytes = 0;
}

void PeerChannel::send(GroupId group, std::span<const std::byte> bytes) {
  auto& stream = streams_[group];
  if (!bytes.empty()) stream.to_send.push_back(bytes);
}

void PeerChannel::receive(GroupId group, std::span<std::byte> into) {
  auto& stream = streams_[group];
  if (!into.empty()) stream.to_receive.push_back(into);
}

std::uint64_t PeerChannel::bytes_sent(GroupId group) const {
  const auto stream = streams_.find(group);
  return stream == streams_.end() ? 0 : stream->second.sent_bytes;
}

std::uint64_t PeerChannel::bytes_received(GroupId group) const {
  const auto stream = streams_.find(group);
  return stream == streams_.end() ? 0 : stream->second.received_bytes;
}

void PeerChannel::forget_group(GroupId group) {
  stop_awaiting_entry(group);
  const auto stream = streams_.find(group);
  if (stream != streams_.end() && !stream->second.ended) streams_.erase(stream);
}

// Stops awaiting the peer's entry if this rank awaits an entry of this group.
void PeerChannel::stop_awaiting_entry(GroupId group) {
  if (entered_group_ == group) entered_step_ = {.generation = 0};
}

bool PeerChannel::end_group(GroupId group) {
  stop_awaiting_entry(group);
  auto& stream = streams_[group];
  const bool frame_is_of_group = outgoing_frame_ && !outgoing_frame_->borrowed.empty() &&
                                 outgoing_frame_->header.group == group;
  const bool is_half_sent = frame_is_of_group && outgoing_bytes_done_ > 0;
  if (is_half_sent) {
    outgoing_frame_->payload.assign(outgoing_frame_->borrowed.begin(),
                                    outgoing_frame_->borrowed.end());
    outgoing_frame_->borrowed = {};
  } else if (frame_is_of_group) {
    outgoing_frame_.reset();
  }
  stream = {};
  stream.ended = true;
  return !is_half_sent;
}

void PeerChannel::send(const GroupEnd& end) {
  queue(FrameType::kGroupEnd, end.group, {.generation = 0, .sequence = end.completed},
        encode_rank_and_reason(end.rank, end.reason));
}

void PeerChannel::send(const Death& death) {
  queue(FrameType::kDeath, 0, {.generation = 0}, encode_rank_and_reason(death.rank, death.reason));
}

std::optional<GroupEnd> PeerChannel::next_group_end() { return take_first(group_ends_); }

std::optional<Death> PeerChannel::next_death() { return take_first(deaths_); }

void PeerChannel::say_goodbye(const std::string& reason) {
  if (said_goodbye_) return;
  ByteWriter writer;
  writer.put_text(reason.substr(0, kLeaveReasonBytesMax));
  Bytes payload = writer.take();
  if (!is_over_)
    envelopes_.push_back({header_of(FrameType::kGoodbye, payload.size()), std::move(payload)});
  said_goodbye_ = true;
}

bool PeerChannel::wants_to_send() const {
  if (is_over_) return false;
  if (outgoing_frame_ || !short_frames_.empty() || !envelopes_.empty() ||
      (connection_ && connection_->has_unsent()))
    return true;
  return std::ranges::any_of(streams_,
                             [](const auto& stream) { return !stream.second.to_send.empty(); });
}

bool PeerChannel::awaits_frames() const {
  if (!connection_ || is_over_) return false;
  if (incoming_frame_ || header_reader_.has_begun() || connection_->has_received()) return true;
  if (has_envelope()) return true;  // the channel may have stopped receiving because of envelopes
  if (entered_step_.generation != 0 && entry(entered_group_, entered_step_) == nullptr) return true;
  return std::ranges::any_of(streams_,
                             [](const auto& stream) { return !stream.second.to_receive.empty(); });
}

Result<bool> PeerChannel::advance(Receive receive) {
  if (!connection_) return false;
  // A step may begin after the peer has sent all data of this step and has left.
  bool any_received = deliver_early_data();
  if (is_over_) return any_received;
  if (receive == Receive::kYes) {
    FARANDOLE_TRY_ASSIGN(const bool received_now, receive_next_bytes());
    any_received |= received_now;
  }
  if (is_over_) return any_received;
  auto send_result = send_next_bytes();
  if (!send_result.ok()) receive_last_frames();
  // After its goodbye, the peer may close the connection. So a send that fails after this goodbye
  // is not an error.
  if (!send_result.ok() && peer_said_goodbye()) {
    is_over_ = true;
    return true;
  }
  if (!send_result.ok()) return send_result.status();
  return any_received || *send_result;
}

// Chooses the next data frame; returns false if there is none. Groups with data take turns.
bool PeerChannel::choose_data_frame() {
  const auto has_data = [](const auto& stream) { return !stream.second.to_send.empty(); };
  auto next_stream = std::find_if(streams_.upper_bound(last_group_sent_), streams_.end(), has_data);
  if (next_stream == streams_.end())
    next_stream = std::find_if(streams_.begin(), streams_.end(), has_data);
  if (next_stream == streams_.end()) return false;
  auto& [group, stream] = *next_stream;
  last_group_sent_ = group;
  const auto bytes =
      stream.to_send.front().first(std::min(kDataFrameBytesMax, stream.to_send.front().size()));
  outgoing_frame_ =
      OutgoingFrame{header_of(FrameType::kData, bytes.size(), group, stream.step), {}, bytes};
  return true;
}

// Chooses the next frame to send; returns false if there is none.
bool PeerChannel::choose_outgoing_frame() {
  outgoing_bytes_done_ = 0;
  if (short_frames_.empty() && (envelopes_.empty() || envelope_was_last_) && choose_data_frame()) {
    envelope_was_last_ = false;
  } else {
    auto& frames = short_frames_.empty() ? envelopes_ : short_frames_;
    if (frames.empty()) return false;
    envelope_was_last_ = short_frames_.empty();
    outgoing_frame_ = std::move(frames.front());
    frames.pop_front();
  }
  outgoing_frame_->header.sequence = frames_sent_ + 1;
  outgoing_header_ = encode_frame_header(outgoing_frame_->header);
  return true;
}

Result<bool> PeerChannel::send_next_bytes() {
  bool progress = false;
  for (std::size_t bytes_moved = 0; bytes_moved < kBytesPerRound;) {
    if (!outgoing_frame_ && !choose_outgoing_frame()) break;
    const auto payload = outgoing_frame_->borrowed.empty()
                             ? std::span<const std::byte>(outgoing_frame_->payload)
                             : outgoing_frame_->borrowed;
    const auto header_bytes_done = std::min(outgoing_bytes_done_, kFrameHeaderBytes);
    const auto header = std::span<const std::byte>(outgoing_header_).subspan(header_bytes_done);
    const auto payload_left = payload.subspan(outgoing_bytes_done_ - header_bytes_done);
    const bool is_data = outgoing_frame_->header.type == FrameType::kData;
    FARANDOLE_TRY_ASSIGN(const std::size_t count,
                         is_data ? connection_->try_send_data(header, payload_left)
                                 : connection_->try_send(header, payload_left));
    if (count == 0) return progress;
    progress = true;
    if (outgoing_bytes_done_ == 0)
      ++frames_sent_;  // a frame is numbered when its first byte is sent
    bytes_moved += count;
    const std::size_t payload_done_before = outgoing_bytes_done_ - header_bytes_done;
    outgoing_bytes_done_ += count;
    const std::size_t payload_done_now =
        outgoing_bytes_done_ - std::min(outgoing_bytes_done_, kFrameHeaderBytes);
    if (!outgoing_frame_->borrowed.empty()) {
      auto& stream = streams_[outgoing_frame_->header.group];
      const std::size_t payload_taken = payload_done_now - payload_done_before;
      stream.sent_bytes += payload_taken;
      auto& front = stream.to_send.front();
      front = front.subspan(payload_taken);
      if (front.empty()) stream.to_send.pop_front();
    }
    if (outgoing_bytes_done_ == kFrameHeaderBytes + payload.size()) outgoing_frame_.reset();
  }
  if (!outgoing_frame_ && connection_->has_unsent()) {
    FARANDOLE_TRY_ASSIGN(const std::size_t count, connection_->try_send({}, {}));
    progress |= count > 0;
  }
  return progress;
}

// A receive is a system call. To save system calls, this function returns when probably no more
// bytes have arrived: after a receive that did not fill its buffer, and after a short frame.
Result<bool> PeerChannel::receive_next_bytes() {
  std::size_t bytes_moved = 0;
  is_drained_ = false;
  while (bytes_moved < kBytesPerRound && !is_drained_) {
    auto count = incoming_frame_ ? receive_payload() : receive_header();
    if (!count.ok() && peer_said_goodbye()) {
      is_over_ = true;
      return true;
    }
    if (!count.ok()) return count.status();
    if (*count == 0 && !(incoming_frame_ && incoming_bytes_done_ == incoming_frame_->length)) break;
    bytes_moved += *count;
    if (!incoming_frame_ || incoming_bytes_done_ < incoming_frame_->length) continue;
    const bool is_data = incoming_frame_->type == FrameType::kData;
    FARANDOLE_TRY(finish_frame());
    if (!is_data && !connection_->has_received()) break;
  }
  return bytes_moved > 0;
}

// Receives the last frames of a peer after a send has failed. These frames may say why the peer has
// ended.
void PeerChannel::receive_last_frames() {
  receives_last_frames_ = true;
  while (!is_over_) {
    const auto received = receive_next_bytes();
    if (!received.ok() || !*received) return;
  }
}

// Receives bytes of a header, or of the payload of the incoming frame.
Result<std::size_t> PeerChannel::try_receive(std::span<std::byte> into) {
  const bool is_data = incoming_frame_ && incoming_frame_->type == FrameType::kData;
  auto count = is_data ? connection_->try_receive_data(into) : connection_->try_receive(into);
  is_drained_ = count.ok() && *count < into.size();
  return count;
}

Result<std::size_t> PeerChannel::receive_header() {
  if (is_full()) return std::size_t{0};
  FARANDOLE_TRY_ASSIGN(const std::size_t count, try_receive(header_reader_.space()));
  header_reader_.mark_filled(count);
  if (!header_reader_.complete()) return count;
  FARANDOLE_TRY_ASSIGN(incoming_frame_, header_reader_.take());
  incoming_bytes_done_ = 0;
  ++frames_received_;
  if (incoming_frame_->epoch != epoch_ || incoming_frame_->sequence != frames_received_)
    return Status::stop(format_text("a frame has epoch {} and number {} instead of {} and {}",
                                    incoming_frame_->epoch, incoming_frame_->sequence, epoch_,
                                    frames_received_));
  if (incoming_frame_->type != FrameType::kData) incoming_payload_.resize(incoming_frame_->length);
  return count;
}

Result<std::size_t> PeerChannel::receive_payload() {
  std::size_t count = 0;
  if (incoming_frame_->type == FrameType::kData) {
    FARANDOLE_TRY_ASSIGN(count, receive_data(streams_[incoming_frame_->group]));
  } else if (incoming_bytes_done_ < incoming_payload_.size()) {
    FARANDOLE_TRY_ASSIGN(count,
                         try_receive(std::span(incoming_payload_).subspan(incoming_bytes_done_)));
  }
  incoming_bytes_done_ += count;
  return count;
}

// The data of an ended group is thrown away.
Result<std::size_t> PeerChannel::receive_data(Stream& stream) {
  const std::size_t bytes_left = incoming_frame_->length - incoming_bytes_done_;
  if (bytes_left == 0) return std::size_t{0};
  FARANDOLE_TRY(check_data(stream));
  const bool has_begun = stream.step.generation == incoming_frame_->generation &&
                         stream.step.sequence == incoming_frame_->step;
  if (stream.ended || !has_begun || !stream.early_data.empty() || stream.to_receive.empty()) {
    FARANDOLE_TRY(check_early_data(stream));
    if (is_full()) return std::size_t{0};
    std::array<std::byte, 16384> buffer;
    FARANDOLE_TRY_ASSIGN(const std::size_t count,
                         try_receive(std::span(buffer).first(std::min(bytes_left, buffer.size()))));
    if (!stream.ended) keep_early_data(stream, std::span(buffer).first(count));
    return count;
  }
  auto& front = stream.to_receive.front();
  FARANDOLE_TRY_ASSIGN(const std::size_t count,
                       try_receive(front.first(std::min(bytes_left, front.size()))));
  stream.received_bytes += count;
  front = front.subspan(count);
  if (front.empty()) stream.to_receive.pop_front();
  return count;
}

bool PeerChannel::is_full() const {
  // After our goodbye, the mailbox takes no more envelopes. Then a full list of received envelopes
  // must not stop the channel, because this rank must receive until it has sent everything.
  if (!incoming_frame_)
    return received_envelopes_.size() >= kReceivedEnvelopesMax && !said_goodbye_ &&
           !receives_last_frames_;
  if (incoming_frame_->type != FrameType::kData) return false;
  const auto found = streams_.find(incoming_frame_->group);
  if (found == streams_.end()) return false;
  const Stream& stream = found->second;
  if (stream.early_data.size() - stream.early_bytes_taken < kEarlyBytesMax) return false;
  // If another group's step waits for data on this channel, this data may come after the early
  // bytes. So the channel must continue to receive. Otherwise two groups could wait for each other
  // for ever on two channels.
  return std::ranges::none_of(streams_,
                              [](const auto& stream) { return !stream.second.to_receive.empty(); });
}

Status PeerChannel::check_early_data(const Stream& stream) const {
  const StepIdentity step{.generation = incoming_frame_->generation,
                          .sequence = incoming_frame_->step};
  if (stream.ended || stream.early_data.empty() || steps_between(stream.early_step, step) == 0)
    return {};
  return Status::stop("data of two steps arrived before the first of them had begun");
}

void PeerChannel::keep_early_data(Stream& stream, std::span<const std::byte> bytes) {
  stream.early_step = {.generation = incoming_frame_->generation,
                       .sequence = incoming_frame_->step};
  stream.early_data.insert(stream.early_data.end(), bytes.begin(), bytes.end());
}

// Early data is data that has arrived before its step has provided memory for it. Copies the early
// data of all steps that have provided memory since then.
bool PeerChannel::deliver_early_data() {
  bool has_delivered = false;
  for (auto& [group, stream] : streams_) {
    if (stream.early_data.empty() || steps_between(stream.step, stream.early_step) != 0) continue;
    while (stream.early_bytes_taken < stream.early_data.size() && !stream.to_receive.empty()) {
      auto& front = stream.to_receive.front();
      const auto count =
          std::min(front.size(), stream.early_data.size() - stream.early_bytes_taken);
      std::memcpy(front.data(), stream.early_data.data() + stream.early_bytes_taken, count);
      stream.early_bytes_taken += count;
      stream.received_bytes += count;
      front = front.subspan(count);
      if (front.empty()) stream.to_receive.pop_front();
      has_delivered = true;
    }
    // Erasing copies the bytes that remain. This is cheap if more bytes were delivered than remain.
    const std::size_t bytes_left = stream.early_data.size() - stream.early_bytes_taken;
    if (bytes_left > 0 && stream.early_bytes_taken <= std::max(bytes_left, kTakenBytesMax))
      continue;
    stream.early_data.erase(
        stream.early_data.begin(),
        stream.early_data.begin() + static_cast<std::ptrdiff_t>(stream.early_bytes_taken));
    stream.early_bytes_taken = 0;
  }
  return has_delivered;
}

Status PeerChannel::check_data(const Stream& stream) const {
  const StepIdentity frame_step{.generation = incoming_frame_->generation,
                                .sequence = incoming_frame_->step};
  if (stream.ended || stream.step.generation == 0 || steps_between(stream.step, frame_step) >= 0)
    return {};
  return Status::stop(format_text(
      "data of step {} of generation {} arrived in step {} of generation {}", incoming_frame_->step,
      incoming_frame_->generation, stream.step.sequence, stream.step.generation));
}

Status PeerChannel::finish_frame() {
  const FrameHeader frame = *std::exchange(incoming_frame_, std::nullopt);
  auto& stream = streams_[frame.group];
  ByteReader reader(incoming_payload_);
  switch (frame.type) {
    case FrameType::kData:
      return {};
    case FrameType::kControl:
      if (!stream.ended) stream.messages.push_back(std::exchange(incoming_payload_, {}));
      return {};
    case FrameType::kEnter: {
      const StepIdentity step{frame.generation, frame.step, reader.get<std::uint64_t>()};
      if (!reader.ok()) return Status::stop("an entry of a lane is too short");
      if (!stream.ended)
        stream.entries.store(step, std::span(incoming_payload_).subspan(sizeof(step.id)));
      return {};
    }
    case FrameType::kGroupEnd: {
      const int rank = reader.get<std::int32_t>();
      group_ends_.push_back({frame.group, frame.step, rank, reader.get_text()});
      return reader.ok() ? Status() : Status::stop("the end of a group is too short");
    }
    case FrameType::kDeath: {
      const int rank = reader.get<std::int32_t>();
      deaths_.push_back({rank, reader.get_text()});
      return reader.ok() ? Status() : Status::stop("the report of a death is too short");
    }
    case FrameType::kGoodbye:
      peer_goodbye_ = reader.get_text();
      return reader.ok() ? Status() : Status::stop("a goodbye is too short");
    case FrameType::kEnvelope:
      received_envelopes_.push_back(std::exchange(incoming_payload_, {}));
      return {};
    case FrameType::kStore:
      break;
  }
  return Status::stop("a rank has sent a frame of the Store");
}

}  // namespace farandole
