#include "mailbox/mailbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/signature.h"
#include "base/try.h"
#include "submission/submission_check.h"

namespace farandole {
namespace {

// How many sends from one rank to another may be done before the receiver has taken the messages.
// The receiver keeps the data of these messages, so this number limits the memory of the receiver.
constexpr std::size_t kEarlySendsMax = 64;
// In one round, this rank reads at most this many envelopes of another rank, and sends at most this
// many parts of data to that rank. Without this limit, the groups and the other messages might make
// no progress.
constexpr int kEnvelopesPerRound = 16;
// How many bytes of a large message go into the ring as one part.
constexpr std::size_t kPartBytes = 16 * 1024;

std::size_t byte_count(const Submission& submission) {
  return static_cast<std::size_t>(element_count(submission)) * row_of(submission.dtype).bytes;
}

void fail(Record& record, Status status, std::vector<Record*>& finished) {
  record.outcome.status = std::move(status);
  finished.push_back(&record);
}

void fail_because(Record& record, const Status& cause, std::vector<Record*>& finished) {
  fail(record, cannot_finish_error(record.submission, cause), finished);
}

Offer offer_of(const Submission& submission, std::uint64_t id) {
  Offer offer;
  offer.id = id;
  offer.group = submission.group;
  offer.channel = submission.channel;
  offer.tag = submission.tag;
  offer.dtype = submission.dtype;
  offer.title = call_title(submission);
  offer.call_error = shortened(submission.call_error, kCallErrorBytesMax);
  if (!offer.call_error.empty()) return offer;
  offer.bytes = byte_count(submission);
  if (offer.bytes <= kInlineBytesMax && offer.bytes > 0)
    offer.data.assign(static_cast<const char*>(submission.input), offer.bytes);
  return offer;
}

// Returns why a message does not fit a receive; empty if it fits.
std::string mismatch_text(const Offer& offer, int from_rank, const Submission& receive,
                          int to_rank) {
  if (offer.dtype == receive.dtype && offer.bytes == byte_count(receive)) return {};
  const auto elements = offer.bytes / row_of(offer.dtype).bytes;
  return format_text(
      "{} of rank {} has {} elements ({}), but {} of rank {} has {} ({}); both must have the same "
      "dtype and number of elements",
      offer.title, from_rank, elements, row_of(offer.dtype).name, call_title(receive), to_rank,
      element_count(receive), row_of(receive.dtype).name);
}

}  // namespace

std::size_t Mailbox::bytes_needed(int local_size) {
  const auto ranks = static_cast<std::size_t>(local_size);
  return ranks * sizeof(MessageRing::Counter) + ranks * ranks * MessageRing::bytes_needed();
}

Mailbox::Mailbox(const Transports& transports, Doorbells& doorbells, FlightRecorder& recorder,
                 const Clock& clock)
    : doorbells_(doorbells), recorder_(recorder), clock_(clock), channels_(transports.channels) {
  for (int rank = 0; rank < doorbells.size(); ++rank) peers_.emplace_back(rank);
  const auto& local_ranks = transports.local_ranks;
  auto* const counters = reinterpret_cast<MessageRing::Counter*>(transports.memory);
  std::byte* const rings = transports.memory + local_ranks.size() * sizeof(*counters);
  // `from` and `to` are indices in `local_ranks`.
  const auto ring = [&](std::size_t from_index, std::size_t to_index, int peer) {
    std::byte* const memory =
        rings + (to_index * local_ranks.size() + from_index) * MessageRing::bytes_needed();
    return MessageRing(memory, doorbells_, peer, counters + to_index);
  };
  const auto own_index = static_cast<std::size_t>(std::ranges::find(local_ranks, doorbells.rank()) -
                                                  local_ranks.begin());
  CHECK(own_index < local_ranks.size(), "this rank is on this host");
  sent_to_this_rank_ = counters + own_index;
  for (std::size_t other_index = 0; other_index < local_ranks.size(); ++other_index) {
    Peer& local_peer = peer(local_ranks[other_index]);
    local_peer.ring_out = ring(own_index, other_index, local_peer.rank);
    local_peer.ring_in = ring(other_index, own_index, local_peer.rank);
  }
}

bool Mailbox::Peer::try_send(std::span<const std::byte> envelope,
                             std::span<const std::byte> payload) {
  return ring_out ? ring_out->try_send(envelope, payload)
                  : channel->try_send_envelope(envelope, payload);
}

std::optional<Bytes> Mailbox::Peer::try_receive() {
  return ring_in ? ring_in->try_receive() : channel->next_envelope();
}

void Mailbox::open_channel(Peer& peer) {
  if (peer.ring_out || peer.channel != nullptr) return;
  peer.channel = &channels_->channel_for_messages(peer.rank, clock_.now());
}

bool Mailbox::PostedReceive::matches(const Offer& offer, int source) const {
  return group == offer.group && tag == offer.tag && channel == offer.channel &&
         (peer == source || peer == kAnyRank);
}

std::optional<int> Mailbox::PostedReceive::missing_source(const std::vector<Peer>& peers) const {
  const auto is_gone = [&peers](int rank) {
    return peers[static_cast<std::size_t>(rank)].end_status.has_value();
  };
  if (peer != kAnyRank) return is_gone(peer) ? std::optional(peer) : std::nullopt;
  return std::ranges::all_of(sources, is_gone) ? std::optional(sources.back()) : std::nullopt;
}

void Mailbox::submit(Record& record, const std::vector<int>& ranks,
                     std::vector<Record*>& finished) {
  if (end_status_) return fail_because(record, *end_status_, finished);
  if (record.submission.operation == Operation::kSend) return send(record, finished);
  receive(record, ranks, finished);
}

void Mailbox::send(Record& record, std::vector<Record*>& finished) {
  const Submission& submission = record.submission;
  Peer& to_peer = peer(submission.peer);
  if (to_peer.end_status) return fail_because(record, *to_peer.end_status, finished);
  open_channel(to_peer);
  const std::uint64_t id = ++to_peer.last_offer_id;
  Offer offer = offer_of(submission, id);
  if (!offer.call_error.empty()) {
    queue_envelope(to_peer, offer);
    return fail(record, Status::fix_call(submission.call_error), finished);
  }
  const bool is_early = offer.is_complete() && to_peer.early_sends < kEarlySendsMax;
  if (is_early) {
    ++to_peer.early_sends;
  } else {
    offer.data.clear();  // the data follows after the acceptance
    to_peer.pending_sends.emplace(
        id, PendingSend{.record = &record, .bytes = offer.bytes, .sent_bytes = 0});
  }
  queue_envelope(to_peer, offer, is_early ? &record : nullptr);
}

void Mailbox::receive(Record& record, const std::vector<int>& ranks,
                      std::vector<Record*>& finished) {
  const Submission& submission = record.submission;
  PostedReceive posted{.record = &record,
                       .group = submission.group,
                       .channel = submission.channel,
                       .tag = submission.tag,
                       .peer = submission.peer,
                       .sources = {},
                       .call_error = submission.call_error};
  if (posted.peer == kAnyRank)
    std::ranges::copy_if(ranks, std::back_inserter(posted.sources),
                         [this](int rank) { return rank != doorbells_.rank(); });
  else
    open_channel(peer(posted.peer));
  for (const int source : posted.sources) open_channel(peer(source));
  if (!posted.call_error.empty()) {
    posted.record = nullptr;
    fail(record, Status::fix_call(submission.call_error), finished);
  }
  if (match_offer(posted, finished)) return;
  if (const auto missing_rank = posted.missing_source(peers_)) {
    if (posted.record != nullptr) fail_because(record, *peer(*missing_rank).end_status, finished);
    return;
  }
  posted_receives_.push_back(std::move(posted));
}

bool Mailbox::match_offer(const PostedReceive& posted, std::vector<Record*>& finished) {
  Peer* from_peer = nullptr;
  std::deque<UnmatchedOffer>::iterator oldest_offer;
  for (Peer& candidate : peers_) {
    const auto matching_offer =
        std::ranges::find_if(candidate.unmatched_offers, [&](const UnmatchedOffer& unmatched) {
          return posted.matches(unmatched.offer, candidate.rank);
        });
    if (matching_offer == candidate.unmatched_offers.end() ||
        (from_peer != nullptr && oldest_offer->arrival < matching_offer->arrival))
      continue;
    from_peer = &candidate;
    oldest_offer = matching_offer;
  }
  if (from_peer == nullptr) return false;
  const Offer offer = std::move(oldest_offer->offer);
  from_peer->unmatched_offers.erase(oldest_offer);
  answer_offer(*from_peer, offer, posted, finished);
  return true;
}

void Mailbox::answer_offer(Peer& from_peer, const Offer& offer, const PostedReceive& posted,
                           std::vector<Record*>& finished) {
  Record* const record = posted.record;
  if (!offer.call_error.empty()) {  // the sender does not wait for an answer
    if (record != nullptr) fail(*record, Status::fix_call(offer.call_error), finished);
    return;
  }
  std::string error = posted.call_error;
  if (record != nullptr)
    error = mismatch_text(offer, from_peer.rank, record->submission, doorbells_.rank());
  if (!error.empty()) {
    if (record != nullptr) fail(*record, Status::fix_call(error), finished);
    return queue_envelope(from_peer, Refusal{offer.id, shortened(error, kCallErrorBytesMax)});
  }
  queue_envelope(from_peer, Acceptance{offer.id});
  if (!offer.is_complete()) {
    from_peer.pending_receives.emplace(offer.id,
                                       PendingReceive{.record = record, .received_bytes = 0});
    return record_running(*record);
  }
  if (!offer.data.empty())
    std::memcpy(record->submission.output, offer.data.data(), offer.data.size());
  finish_receive(*record, from_peer.rank, finished);
}

// Does nothing if this rank can make no more calls with the peer.
void Mailbox::queue_envelope(Peer& to_peer, const Envelope& envelope, Record* completed_send) {
  if (to_peer.end_status) return;
  to_peer.unsent_envelopes.push_back({encode(envelope), completed_send});
  ++unsent_count_;
}

void Mailbox::finish_receive(Record& record, int source, std::vector<Record*>& finished) {
  record.outcome.source = source;
  finished.push_back(&record);
}

bool Mailbox::advance(std::vector<Record*>& finished) {
  bool progressed = receive_envelopes(finished);
  if (unsent_count_ == 0 || protocol_error_) return progressed;
  for (Peer& to_peer : peers_) {
    if (to_peer.unsent_envelopes.empty() && to_peer.accepted_ids.empty()) continue;
    progressed |= send_envelopes(to_peer, finished);
    progressed |= to_peer.unsent_envelopes.empty() && send_data(to_peer, finished);
  }
  return progressed;
}

// Also reads the envelopes of ranks with which this rank has not exchanged messages yet. Otherwise
// these envelopes would stay in the channel, and the frames of groups that arrive after them would
// have to wait.
bool Mailbox::receive_envelopes(std::vector<Record*>& finished) {
  bool progressed = false;
  const auto receive_from_channel = [&](int rank, const PeerChannel& channel) {
    if (!channel.has_envelope()) return;
    open_channel(peer(rank));
    progressed |= receive_from(peer(rank), finished) > 0;
  };
  if (channels_ != nullptr) channels_->for_each(receive_from_channel);
  const std::uint32_t messages_sent = sent_to_this_rank_->messages.load(std::memory_order_seq_cst);
  if (messages_sent == count_at_last_read_) return progressed;
  count_at_last_read_ = messages_sent;
  for (Peer& from_peer : peers_) {
    if (!from_peer.ring_in || from_peer.rank == doorbells_.rank()) continue;
    const int count = receive_from(from_peer, finished);
    if (count == kEnvelopesPerRound)
      count_at_last_read_ = messages_sent - 1;  // the next round continues
    progressed |= count > 0;
  }
  return progressed;
}

int Mailbox::receive_from(Peer& from_peer, std::vector<Record*>& finished) {
  int count = 0;
  for (; count < kEnvelopesPerRound && !protocol_error_; ++count) {
    const auto bytes = from_peer.try_receive();
    if (!bytes) break;
    const Status status = handle_envelope(from_peer, *bytes, finished);
    if (!status.ok())
      protocol_error_ = Status::stop(format_text("rank {}: {}", from_peer.rank, status.message()));
  }
  return count;
}

Status Mailbox::handle_envelope(Peer& from_peer, std::span<const std::byte> bytes,
                                std::vector<Record*>& finished) {
  FARANDOLE_TRY_ASSIGN(auto decoded, decode_envelope(bytes));
  if (auto* const offer = std::get_if<Offer>(&decoded.envelope))
    return handle_offer(from_peer, std::move(*offer), finished);
  // If this rank can make no more calls with the peer (`end_status` says why), it ignores the
  // envelope. The peer may still send envelopes, for example if it does not know yet that a third
  // rank has died.
  if (from_peer.end_status) return {};
  if (const auto* const acceptance = std::get_if<Acceptance>(&decoded.envelope))
    return handle_acceptance(from_peer, acceptance->id, finished);
  if (const auto* const refusal = std::get_if<Refusal>(&decoded.envelope))
    return handle_refusal(from_peer, *refusal, finished);
  return handle_data(from_peer, std::get<DataHeader>(decoded.envelope).id, decoded.data, finished);
}

Status Mailbox::handle_offer(Peer& from_peer, Offer offer, std::vector<Record*>& finished) {
  if (offer.id != ++from_peer.last_received_id)
    return Status::stop(format_text("offered message {} instead of message {}, a bug in Farandole",
                                    offer.id, from_peer.last_received_id));
  // the data of the message will not arrive, so no receive may match the offer
  if (from_peer.end_status && !offer.is_complete()) return {};
  const auto matching_receive = std::ranges::find_if(
      posted_receives_,
      [&](const PostedReceive& posted) { return posted.matches(offer, from_peer.rank); });
  if (matching_receive == posted_receives_.end()) {
    from_peer.unmatched_offers.push_back({std::move(offer), ++offers_arrived_});
    return {};
  }
  const PostedReceive posted = std::move(*matching_receive);
  posted_receives_.erase(matching_receive);
  answer_offer(from_peer, offer, posted, finished);
  return {};
}

Result<std::map<std::uint64_t, Mailbox::PendingSend>::iterator> Mailbox::Peer::find_answered_send(
    std::uint64_t id) {
  const auto answered_send = pending_sends.find(id);
  const bool was_early = answered_send == pending_sends.end();
  if (was_early ? early_sends == 0 : answered_send->second.is_accepted)
    return Status::stop(
        format_text("answered message {}, which needs no answer, a bug in Farandole", id));
  if (was_early) --early_sends;
  return answered_send;
}

Status Mailbox::handle_acceptance(Peer& from_peer, std::uint64_t id,
                                  std::vector<Record*>& finished) {
  FARANDOLE_TRY_ASSIGN(const auto answered_send, from_peer.find_answered_send(id));
  if (answered_send == from_peer.pending_sends.end()) return {};
  if (answered_send->second.bytes > 0) {
    record_running(*answered_send->second.record);
    answered_send->second.is_accepted = true;
    from_peer.accepted_ids.push_back(id);
    ++unsent_count_;
    return {};
  }
  finished.push_back(answered_send->second.record);
  from_peer.pending_sends.erase(answered_send);
  return {};
}

Status Mailbox::handle_refusal(Peer& from_peer, const Refusal& refusal,
                               std::vector<Record*>& finished) {
  FARANDOLE_TRY_ASSIGN(const auto answered_send, from_peer.find_answered_send(refusal.id));
  if (answered_send == from_peer.pending_sends.end()) return {};
  fail(*answered_send->second.record, Status::fix_call(refusal.text), finished);
  from_peer.pending_sends.erase(answered_send);
  return {};
}

Status Mailbox::handle_data(Peer& from_peer, std::uint64_t id, std::span<const std::byte> data,
                            std::vector<Record*>& finished) {
  const auto pending_receive = from_peer.pending_receives.find(id);
  const std::size_t bytes_left = pending_receive == from_peer.pending_receives.end()
                                     ? 0
                                     : byte_count(pending_receive->second.record->submission) -
                                           pending_receive->second.received_bytes;
  if (data.empty() || data.size() > bytes_left)
    return Status::stop(
        format_text("sent {} bytes of message {}, which has {} left, a bug in "
                    "Farandole",
                    data.size(), id, bytes_left));
  PendingReceive& receive = pending_receive->second;
  std::memcpy(static_cast<std::byte*>(receive.record->submission.output) + receive.received_bytes,
              data.data(), data.size());
  receive.received_bytes += data.size();
  if (data.size() < bytes_left) return {};
  finish_receive(*receive.record, from_peer.rank, finished);
  from_peer.pending_receives.erase(pending_receive);
  return {};
}

bool Mailbox::send_envelopes(Peer& to_peer, std::vector<Record*>& finished) {
  bool progressed = false;
  while (!to_peer.unsent_envelopes.empty() &&
         to_peer.try_send(to_peer.unsent_envelopes.front().bytes)) {
    if (Record* const completed_send = to_peer.unsent_envelopes.front().completed_send)
      finished.push_back(completed_send);
    to_peer.unsent_envelopes.pop_front();
    --unsent_count_;
    progressed = true;
  }
  return progressed;
}

// Sends one message after another, until the ring or the channel has no more room.
bool Mailbox::send_data(Peer& to_peer, std::vector<Record*>& finished) {
  bool progressed = false;
  for (int count = 0; count < kEnvelopesPerRound && !to_peer.accepted_ids.empty(); ++count) {
    const auto pending_send = to_peer.pending_sends.find(to_peer.accepted_ids.front());
    PendingSend& send = pending_send->second;
    const auto* const data = static_cast<const std::byte*>(send.record->submission.input);
    const std::span part(data + send.sent_bytes,
                         std::min(kPartBytes, send.bytes - send.sent_bytes));
    if (!to_peer.try_send(encode(DataHeader{pending_send->first}), part)) return progressed;
    progressed = true;
    send.sent_bytes += part.size();
    if (send.sent_bytes < send.bytes) continue;
    finished.push_back(send.record);
    to_peer.pending_sends.erase(pending_send);
    to_peer.accepted_ids.pop_front();
    --unsent_count_;
  }
  return progressed;
}

bool Mailbox::is_moving_data() const {
  return !doorbells_.closed_by() && std::ranges::any_of(peers_, [this](const Peer& peer) {
    return !peer.end_status && !doorbells_.has_left(peer.rank) &&
           !(peer.unsent_envelopes.empty() && peer.accepted_ids.empty() &&
             peer.pending_receives.empty());
  });
}

void Mailbox::end_peer(int rank, const Status& status, std::vector<Record*>& finished) {
  Peer& ended_peer = peer(rank);
  if (ended_peer.end_status) return;
  ended_peer.end_status = status;
  for (const UnsentEnvelope& envelope : ended_peer.unsent_envelopes)
    if (envelope.completed_send != nullptr)
      fail_because(*envelope.completed_send, status, finished);
  for (const auto& [id, send] : ended_peer.pending_sends)
    fail_because(*send.record, status, finished);
  for (const auto& [id, receive] : ended_peer.pending_receives)
    fail_because(*receive.record, status, finished);
  unsent_count_ -= ended_peer.unsent_envelopes.size() + ended_peer.accepted_ids.size();
  ended_peer.unsent_envelopes.clear();
  ended_peer.accepted_ids.clear();
  ended_peer.pending_sends.clear();
  ended_peer.pending_receives.clear();
  std::erase_if(ended_peer.unmatched_offers,
                [](const UnmatchedOffer& unmatched) { return !unmatched.offer.is_complete(); });
  std::erase_if(posted_receives_, [&](const PostedReceive& posted) {
    if (!posted.missing_source(peers_)) return false;
    if (posted.record != nullptr) fail_because(*posted.record, status, finished);
    return true;
  });
}

void Mailbox::forget_group(GroupId group) {
  std::erase_if(posted_receives_,
                [group](const PostedReceive& posted) { return posted.group == group; });
  for (Peer& from_peer : peers_)
    std::erase_if(from_peer.unmatched_offers, [&](const UnmatchedOffer& unmatched) {
      if (unmatched.offer.group != group) return false;
      if (unmatched.offer.call_error.empty())
        queue_envelope(from_peer, Acceptance{unmatched.offer.id});
      return true;
    });
}

void Mailbox::end(const Status& status, std::vector<Record*>& finished) {
  if (end_status_) return;
  end_status_ = status;
  for (const Peer& other : peers_)
    if (other.rank != doorbells_.rank()) end_peer(other.rank, status, finished);
}

}  // namespace farandole
