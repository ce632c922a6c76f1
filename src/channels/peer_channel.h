// PeerChannel: all frames between this rank and one rank on another host. It carries the data and
// the entries of lanes, the control messages and the ends of groups, and the envelopes of messages.
//
// Short frames are sent before the data frames and envelopes of which no byte has been sent yet.
// Data frames and envelopes take turns. Data may come before its step has provided memory for it.
// This object keeps such early data, so that the data does not delay the frames of other groups. If
// a step moves data both ways, the early data is at most two windows, because the peer cannot
// continue without our data. If a step moves data one way, as a broadcast does, the peer may be far
// ahead. In this case, when the early data reaches a limit, the channel stops receiving until the
// step has taken early data. The channel also stops receiving while many received envelopes wait
// for the owner.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/bytes.h"
#include "channels/peer_entries.h"
#include "collective/group.h"
#include "farandole/engine.h"
#include "farandole/status.h"
#include "network/connection.h"
#include "network/frame.h"

namespace farandole {

// Says that a group has ended on the sender's host, because a rank has left in an orderly way.
struct GroupEnd {
  std::uint32_t group = 0;
  std::uint32_t completed = 0;  // the last sequence that the members on that host have completed
  int rank = 0;                 // the rank that has left
  std::string reason = {};
  friend bool operator==(const GroupEnd&, const GroupEnd&) = default;
};

// Says that the epoch is over for all ranks, because a rank has died.
struct Death {
  int rank = 0;
  std::string reason = {};
  friend bool operator==(const Death&, const Death&) = default;
};

// Only one thread at a time may use it: the holder of the progress lock. No function blocks.
class PeerChannel {
 public:
  // Both ends must have the same epoch.
  explicit PeerChannel(std::uint64_t epoch) : epoch_(epoch) {}
  PeerChannel(const PeerChannel&) = delete;
  PeerChannel& operator=(const PeerChannel&) = delete;

  // Frames that are sent before attach() wait in this object.
  void attach(std::unique_ptr<Connection> connection) { connection_ = std::move(connection); }
  Connection* connection() const { return connection_.get(); }  // null until attach()

  // Sends and receives as much as is possible without blocking, but at most about 1 MiB. Returns
  // whether any bytes were moved. Errors, which are final: kRebuildGroup if the connection is
  // broken or the peer has ended without a goodbye; kStop if a frame is invalid.
  Result<bool> advance() { return advance(Receive::kYes); }
  // The same as advance(), but the caller chooses whether to receive. A receive is a system call,
  // even if nothing has arrived.
  enum class Receive : std::uint8_t { kNo, kYes };
  Result<bool> advance(Receive receive);
  // Whether this rank waits for frames of the peer: the peer's entry of the last step that we have
  // entered, the data of a step, or the missing part of a frame.
  bool awaits_frames() const;
  // Whether the peer has sent a frame.
  bool has_received() const { return frames_received_ > 0; }
  bool wants_to_send() const;
  bool wants_to_receive() const { return connection_ && !is_over_ && !is_full(); }

  // Control messages of a group.
  void send_message(GroupId group, Bytes message);
  std::optional<Bytes> next_message(GroupId group);

  // Queues an envelope that consists of `first` and `second`, at most 64 KiB together. Returns
  // false if too many envelopes wait or the connection is over.
  bool try_send_envelope(std::span<const std::byte> first, std::span<const std::byte> second);
  // The owner must take received envelopes even if no call waits for them. While this object keeps
  // too many envelopes, the channel receives no further frames.
  bool has_envelope() const { return !received_envelopes_.empty(); }
  std::optional<Bytes> next_envelope();

  // The functions of Lane, for one group; see collective/lane.h. entry() returns the peer's entry
  // if it has exactly this generation and sequence; otherwise null.
  void send_entry(GroupId group, const StepIdentity& step, std::span<const std::byte> note);
  const PeerEntries::Entry* entry(GroupId group, const StepIdentity& step) const;
  void begin(GroupId group, const StepIdentity& step);
  void send(GroupId group, std::span<const std::byte> bytes);
  void receive(GroupId group, std::span<std::byte> into);
  std::uint64_t bytes_sent(GroupId group) const;
  std::uint64_t bytes_received(GroupId group) const;

  // Frames of a group that come before begin_group() are kept. A group may begin again after its
  // end.
  void begin_group(GroupId group) { streams_[group].ended = false; }
  // Releases the borrowed memory of an ended group, and drops all its later frames. Returns false
  // if a data frame of the group is half sent. In this case, copies the rest of the frame and sends
  // it later: without this rest, the peer would read the next frame's bytes as a part of this
  // frame.
  bool end_group(GroupId group);
  // Forgets a removed group, which must not have data on its way. If end_group() was called for the
  // group, remembers only that the group has ended, because its later frames must be dropped.
  void forget_group(GroupId group);
  // Marks the channel as failed. After this, the channel drops all frames.
  void give_up() { is_over_ = true; }

  void send(const GroupEnd& end);
  void send(const Death& death);
  std::optional<GroupEnd> next_group_end();
  std::optional<Death> next_death();

  // Tells the peer that this rank leaves in an orderly way and sends nothing more. The peer
  // receives the goodbye after all envelopes.
  void say_goodbye(const std::string& reason);
  bool peer_said_goodbye() const { return peer_goodbye_.has_value(); }
  // The reason why the peer leaves; empty until the peer has said goodbye.
  const std::optional<std::string>& peer_goodbye() const { return peer_goodbye_; }
  // Whether the connection is over: the peer has closed it after its goodbye, or it has failed.
  bool is_over() const { return is_over_; }

 private:
  struct Stream {                        // data, entries and messages of one group
    StepIdentity step{.generation = 0};  // the step whose data moves; generation 0: none
    std::deque<std::span<const std::byte>> to_send = {};
    std::deque<std::span<std::byte>> to_receive = {};
    std::uint64_t sent_bytes = 0;
    std::uint64_t received_bytes = 0;
    PeerEntries entries = {};
    std::deque<Bytes> messages = {};
    StepIdentity early_step{.generation = 0};  // the step of `early_data`
    Bytes early_data = {};                     // received before the step provided memory
    std::size_t early_bytes_taken = 0;
    bool ended = false;
  };
  struct OutgoingFrame {
    FrameHeader header;
    Bytes payload = {};                        // empty if `borrowed` is used
    std::span<const std::byte> borrowed = {};  // the payload of a data frame
  };

  FrameHeader header_of(FrameType type, std::size_t length, GroupId group = 0,
                        const StepIdentity& step = {.generation = 0}) const;
  void queue(FrameType type, GroupId group, const StepIdentity& step, Bytes payload);
  bool choose_outgoing_frame();
  bool choose_data_frame();
  Result<bool> send_next_bytes();
  Result<bool> receive_next_bytes();
  void receive_last_frames();
  void stop_awaiting_entry(GroupId group);
  Result<std::size_t> try_receive(std::span<std::byte> into);
  Result<std::size_t> receive_header();
  Result<std::size_t> receive_payload();
  Result<std::size_t> receive_data(Stream& stream);
  // Whether too much early data or too many envelopes are kept, so that the next bytes must wait.
  bool is_full() const;
  Status finish_frame();
  bool deliver_early_data();
  Status check_early_data(const Stream& stream) const;
  void keep_early_data(Stream& stream, std::span<const std::byte> bytes);
  Status check_data(const Stream& stream) const;

  std::uint64_t epoch_;
  std::unique_ptr<Connection> connection_;
  std::map<GroupId, Stream> streams_;
  std::deque<GroupEnd> group_ends_;
  std::deque<Death> deaths_;
  std::deque<Bytes> received_envelopes_;

  std::deque<OutgoingFrame> short_frames_;       // unsent frames
  std::deque<OutgoingFrame> envelopes_;          // unsent envelopes; the goodbye comes last
  std::optional<OutgoingFrame> outgoing_frame_;  // the frame that is being sent
  FrameHeaderBytes outgoing_header_{};
  std::size_t outgoing_bytes_done_ = 0;  // sent bytes of header and payload
  std::uint64_t frames_sent_ = 0;
  GroupId last_group_sent_ = 0;     // the group of the last data frame
  bool envelope_was_last_ = false;  // whether the last frame was an envelope

  FrameHeaderReader header_reader_;
  std::optional<FrameHeader> incoming_frame_;
  Bytes incoming_payload_;               // data frames do not use it
  std::size_t incoming_bytes_done_ = 0;  // received bytes of the payload
  bool is_drained_ = false;              // whether the last receive did not fill its buffer
  std::uint64_t frames_received_ = 0;
  GroupId entered_group_ = 0;  // the group of our last entry
  StepIdentity entered_step_{.generation = 0};
  bool said_goodbye_ = false;
  bool receives_last_frames_ = false;  // true: no more bytes can be sent
  std::optional<std::string> peer_goodbye_;
  bool is_over_ = false;
};

}  // namespace farandole
