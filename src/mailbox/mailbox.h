// Mailbox: this rank's messages to and from the other ranks of the job. Each pair of ranks on this
// host has two message rings. They lie in memory that all ranks of the host map; the kernel
// allocates a page of this memory at its first use. Messages to and from a rank on another host go
// through the channel to that rank, which is created at its first use. Messages need no agreement:
// the receiver matches them by group, channel and tag, in the order in which they arrived. A
// mailbox never blocks. Functions with a parameter `finished` append the records that they finish
// to it. Only the holder of the progress lock may use a mailbox.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "channels/channels.h"
#include "mailbox/envelope.h"
#include "submission/submission_table.h"
#include "timeline/flight_record.h"
#include "transport/shm/message_ring.h"

namespace farandole {

class Mailbox {
 public:
  // The size of the shared memory for `local_size` ranks on this host.
  static std::size_t bytes_needed(int local_size);

  struct Transports {   // how this rank reaches the other ranks
    std::byte* memory;  // bytes_needed() bytes that the local ranks share; they are zero at first
    std::vector<int> local_ranks;  // the ranks on this host, ascending
    // the channels to the ranks on other hosts; null if all ranks are on this host
    Channels* channels = nullptr;
  };
  // All borrowed objects must outlive this one.
  Mailbox(const Transports& transports, Doorbells& doorbells, FlightRecorder& recorder,
          const Clock& clock);
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Adds a checked send or receive. The record must keep its address until it is finished. `ranks`
  // are the ranks of its group.
  void submit(Record& record, const std::vector<int>& ranks, std::vector<Record*>& finished);
  // Runs one round. Returns true if it made progress.
  bool advance(std::vector<Record*>& finished);
  // Whether envelopes or data wait for room in a ring.
  bool has_unsent() const { return unsent_count_ > 0; }
  // Whether data or answers are still on their way to or from another rank in the job.
  bool is_moving_data() const;

  // Ends the calls that need the rank `rank`, which is gone. Their error is kRebuildGroup, with the
  // text of `status` as the reason. A message that has arrived completely can still be received.
  // Before end_peer(), call advance() until it makes no progress, because the peer may have sent
  // something just before its end.
  void end_peer(int rank, const Status& status, std::vector<Record*>& finished);
  bool is_gone(int rank) const {
    return peers_[static_cast<std::size_t>(rank)].end_status.has_value();
  }
  // Forgets the receives and the offers of a removed group. The senders of these offers do not wait
  // for answers, because the offers contain the data of the messages.
  void forget_group(GroupId group);
  // The same as end_peer(), for all peers. Later calls fail, too.
  void end(const Status& status, std::vector<Record*>& finished);
  // Set if another rank has broken the protocol, which is a bug.
  const std::optional<Status>& protocol_error() const { return protocol_error_; }

 private:
  // An envelope that waits for room. `completed_send` is done when the envelope is in the ring.
  struct UnsentEnvelope {
    Bytes bytes;
    Record* completed_send = nullptr;
  };
  struct PendingSend {  // a message that was offered, and is not sent completely
    Record* record;
    std::size_t bytes;
    std::size_t sent_bytes;
    bool is_accepted = false;
  };
  struct PendingReceive {  // a message that was accepted and has not arrived completely
    Record* record;
    std::size_t received_bytes;
  };
  struct UnmatchedOffer {  // an offer for which no receive was submitted yet
    Offer offer;
    std::uint64_t arrival;  // the number of this offer among the offers of all peers
  };
  struct Peer {
    explicit Peer(int peer_rank) : rank(peer_rank) {}
    bool try_send(std::span<const std::byte> envelope, std::span<const std::byte> payload = {});
    std::optional<Bytes> try_receive();
    // Call it when the peer has answered this offer. Returns the entry in `pending_sends`; end() if
    // the message was sent early (see envelope.h), so that the send is done. Errors: kStop if this
    // offer needs no answer.
    Result<std::map<std::uint64_t, PendingSend>::iterator> find_answered_send(std::uint64_t id);

    int rank;
    std::optional<MessageRing> ring_out;  // the rings are used if the peer is on this host
    std::optional<MessageRing> ring_in;
    PeerChannel* channel = nullptr;  // for a peer on another host; null before the first use
    std::deque<UnsentEnvelope> unsent_envelopes;
    std::uint64_t last_offer_id = 0;                     // the id of this rank's last offer
    std::uint64_t last_received_id = 0;                  // the id of the peer's last offer
    std::map<std::uint64_t, PendingSend> pending_sends;  // by id
    // the ids of the accepted messages whose data is being sent
    std::deque<std::uint64_t> accepted_ids;
    std::size_t early_sends = 0;  // sends that were done before the receiver has taken the message
    std::deque<UnmatchedOffer> unmatched_offers;
    std::map<std::uint64_t, PendingReceive> pending_receives;  // by id
    std::optional<Status> end_status;
  };
  // A receive whose message was not offered yet. It keeps the fields that decide whether a message
  // matches, because an invalid receive is finished before its message arrives.
  struct PostedReceive {
    Record* record;  // null for an invalid receive
    GroupId group;
    std::string channel;
    int tag;
    int peer;
    std::vector<int> sources;  // for kAnyRank: the other ranks of the group
    std::string call_error;

    bool matches(const Offer& offer, int source) const;
    // If no rank that may send the message is in the job any more, returns one of these ranks, so
    // that the error can name it. Otherwise returns an empty value.
    std::optional<int> missing_source(const std::vector<Peer>& peers) const;
  };

  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  // Finds or creates the channel to a rank on another host.
  void open_channel(Peer& peer);

  void send(Record& record, std::vector<Record*>& finished);
  void receive(Record& record, const std::vector<int>& ranks, std::vector<Record*>& finished);
  // Matches a receive with the oldest offer that fits. Returns false if no offer fits.
  bool match_offer(const PostedReceive& posted, std::vector<Record*>& finished);
  // Answers an offer that matches a receive.
  void answer_offer(Peer& from_peer, const Offer& offer, const PostedReceive& posted,
                    std::vector<Record*>& finished);
  void queue_envelope(Peer& to_peer, const Envelope& envelope, Record* completed_send = nullptr);

  bool receive_envelopes(std::vector<Record*>& finished);
  // Returns how many envelopes it has read, at most kEnvelopesPerRound.
  int receive_from(Peer& from_peer, std::vector<Record*>& finished);
  Status handle_envelope(Peer& from_peer, std::span<const std::byte> bytes,
                         std::vector<Record*>& finished);
  Status handle_offer(Peer& from_peer, Offer offer, std::vector<Record*>& finished);
  Status handle_acceptance(Peer& from_peer, std::uint64_t id, std::vector<Record*>& finished);
  Status handle_refusal(Peer& from_peer, const Refusal& refusal, std::vector<Record*>& finished);
  Status handle_data(Peer& from_peer, std::uint64_t id, std::span<const std::byte> data,
                     std::vector<Record*>& finished);
  bool send_envelopes(Peer& to_peer, std::vector<Record*>& finished);
  bool send_data(Peer& to_peer, std::vector<Record*>& finished);
  void finish_receive(Record& record, int source, std::vector<Record*>& finished);
  void record_running(const Record& record) {
    recorder_.record_running(record.handle, clock_.now());
  }

  Doorbells& doorbells_;
  FlightRecorder& recorder_;
  const Clock& clock_;
  Channels* const channels_;
  const MessageRing::Counter* sent_to_this_rank_ = nullptr;  // written by ranks on this host
  std::uint32_t count_at_last_read_ = 0;  // the value of `sent_to_this_rank_` at the last read
  std::vector<Peer> peers_;               // by rank; the entry of this rank is not used
  std::deque<PostedReceive> posted_receives_;
  std::uint64_t offers_arrived_ = 0;
  std::size_t unsent_count_ = 0;  // the envelopes and accepted messages that wait to be sent
  std::optional<Status> end_status_;
  std::optional<Status> protocol_error_;
};

}  // namespace farandole
