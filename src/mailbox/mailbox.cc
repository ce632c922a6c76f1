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
// The receiver keeps the data of these messages, so this limits its memory.
constexpr std::size_t kEarlyMax = 64;
// In one round, this rank reads at most this many envelopes of another rank, and sends it at most
// this many parts of data. Without this limit, the groups and the other messages might make no
// progress.
constexpr int kEnvelopesPerRound = 16;
// How many bytes of a large message go into the ring at once.
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

// Why a message does not fit a receive; empty if it fits.
std::string mismatch(const Offer& offer, int from, const Submission& receive, int to) {
  if (offer.dtype == receive.dtype && offer.bytes == byte_count(receive)) return {};
  const auto elements = offer.bytes / row_of(offer.dtype).bytes;
  return format_text(
      "{} of rank {} has {} elements ({}), but {} of rank {} has {} ({}); both must have the same "
      "dtype and number of elements",
      offer.title, from, elements, row_of(offer.dtype).name, call_title(receive), to,
      element_count(receive), row_of(receive.dtype).name);
}

}  // namespace

std::size_t Mailbox::bytes_needed(int local_size) {
  const auto ranks = static_cast<std::size_t>(local_size);
  return ranks * sizeof(MessageRing::Counter) + ranks * ranks * MessageRing::bytes_needed();
}

Mailbox::Mailbox(const Ways& ways, Doorbells& doorbells, FlightRecorder& recorder,
                 const Clock& clock)
    : doorbells_(doorbells), recorder_(recorder), clock_(clock), channels_(ways.channels) {
  for (int rank = 0; rank < doorbells.size(); ++rank) peers_.emplace_back(rank);
  const auto& local = ways.local_ranks;
  auto* const counters = reinterpret_cast<MessageRing::Counter*>(ways.memory);
  std::byte* const rings = ways.memory + local.size() * sizeof(*counters);
  // `from` and `to` are indices in `local`.
  const auto ring = [&](std::size_t from, std::size_t to, int peer) {
    std::byte* const memory = rings + (to * local.size() + from) * MessageRing::bytes_needed();
    return MessageRing(memory, doorbells_, peer, counters + to);
  };
  const auto own =
      static_cast<std::size_t>(std::ranges::find(local, doorbells.rank()) - local.begin());
  CHECK(own < local.size(), "this rank is on this host");
  sent_to_us_ = counters + own;
  for (std::size_t other = 0; other < local.size(); ++other) {
    Peer& one = peer(local[other]);
    one.out = ring(own, other, one.rank);
    one.in = ring(other, own, one.rank);
  }
}

bool Mailbox::Peer::try_send(std::span<const std::byte> envelope, std::span<const std::byte> rest) {
  return out ? out->try_send(envelope, rest) : channel->try_send_envelope(envelope, rest);
}

std::optional<Bytes> Mailbox::Peer::try_receive() {
  return in ? in->try_receive() : channel->next_envelope();
}

void Mailbox::open(Peer& peer) {
  if (peer.out || peer.channel != nullptr) return;
  peer.channel = &channels_->for_messages(peer.rank, clock_.now());
}

bool Mailbox::Posted::matches(const Offer& offer, int source) const {
  return group == offer.group && tag == offer.tag && channel == offer.channel &&
         (peer == source || peer == kAnyRank);
}

std::optional<int> Mailbox::Posted::missing_source(const std::vector<Peer>& peers) const {
  const auto is_gone = [&peers](int rank) {
    return peers[static_cast<std::size_t>(rank)].gone.has_value();
  };
  if (peer != kAnyRank) return is_gone(peer) ? std::optional(peer) : std::nullopt;
  return std::ranges::all_of(sources, is_gone) ? std::optional(sources.back()) : std::nullopt;
}

void Mailbox::submit(Record& record, const std::vector<int>& ranks,
                     std::vector<Record*>& finished) {
  if (ended_) return fail_because(record, *ended_, finished);
  if (record.submission.operation == Operation::kSend) return send(record, finished);
  receive(record, ranks, finished);
}

void Mailbox::send(Record& record, std::vector<Record*>& finished) {
  const Submission& submission = record.submission;
  Peer& to = peer(submission.peer);
  if (to.gone) return fail_because(record, *to.gone, finished);
  open(to);
  const std::uint64_t id = ++to.last_id;
  Offer offer = offer_of(submission, id);
  if (!offer.call_error.empty()) {
    post(to, offer);
    return fail(record, Status::fix_call(submission.call_error), finished);
  }
  const bool early = offer.is_complete() && to.early < kEarlyMax;
  if (early) {
    ++to.early;
  } else {
    offer.data.clear();  // it follows after the acceptance
    to.sending.emplace(id, Sending{.record = &record, .bytes = offer.bytes, .sent = 0});
  }
  post(to, offer, early ? &record : nullptr);
}

void Mailbox::receive(Record& record, const std::vector<int>& ranks,
                      std::vector<Record*>& finished) {
  const Submission& submission = record.submission;
  Posted posted{.record = &record,
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
    open(peer(posted.peer));
  for (const int source : posted.sources) open(peer(source));
  if (!posted.call_error.empty()) {
    posted.record = nullptr;
    fail(record, Status::fix_call(submission.call_error), finished);
  }
  if (take_offer(posted, finished)) return;
  if (const auto missing = posted.missing_source(peers_)) {
    if (posted.record != nullptr) fail_because(record, *peer(*missing).gone, finished);
    return;
  }
  posted_.push_back(std::move(posted));
}

bool Mailbox::take_offer(const Posted& posted, std::vector<Record*>& finished) {
  Peer* from = nullptr;
  std::deque<Offered>::iterator oldest;
  for (Peer& candidate : peers_) {
    const auto found = std::ranges::find_if(candidate.offers, [&](const Offered& offered) {
      return posted.matches(offered.offer, candidate.rank);
    });
    if (found == candidate.offers.end() || (from != nullptr && oldest->arrival < found->arrival))
      continue;
    from = &candidate;
    oldest = found;
  }
  if (from == nullptr) return false;
  const Offer offer = std::move(oldest->offer);
  from->offers.erase(oldest);
  answer(*from, offer, posted, finished);
  return true;
}

void Mailbox::answer(Peer& from, const Offer& offer, const Posted& posted,
                     std::vector<Record*>& finished) {
  Record* const record = posted.record;
  if (!offer.call_error.empty()) {  // the sender does not wait for an answer
    if (record != nullptr) fail(*record, Status::fix_call(offer.call_error), finished);
    return;
  }
  std::string error = posted.call_error;
  if (record != nullptr) error = mismatch(offer, from.rank, record->submission, doorbells_.rank());
  if (!error.empty()) {
    if (record != nullptr) fail(*record, Status::fix_call(error), finished);
    return post(from, Refusal{offer.id, shortened(error, kCallErrorBytesMax)});
  }
  post(from, Acceptance{offer.id});
  if (!offer.is_complete()) {
    from.receiving.emplace(offer.id, Receiving{.record = record, .received = 0});
    return record_running(*record);
  }
  if (!offer.data.empty())
    std::memcpy(record->submission.output, offer.data.data(), offer.data.size());
  finish_receive(*record, from.rank, finished);
}

// A peer that is gone needs no answer.
void Mailbox::post(Peer& to, const Envelope& envelope, Record* completes) {
  if (to.gone) return;
  to.unsent.push_back({encode(envelope), completes});
  ++unsent_;
}

void Mailbox::finish_receive(Record& record, int source, std::vector<Record*>& finished) {
  record.outcome.source = source;
  finished.push_back(&record);
}

bool Mailbox::advance(std::vector<Record*>& finished) {
  bool progressed = receive_envelopes(finished);
  if (unsent_ == 0 || broken_) return progressed;
  for (Peer& to : peers_) {
    if (to.unsent.empty() && to.accepted.empty()) continue;
    progressed |= send_envelopes(to, finished);
    progressed |= to.unsent.empty() && send_data(to, finished);
  }
  return progressed;
}

// Also reads what comes from a rank with which no call has begun here. Otherwise its envelopes
// would fill the channel and hold up the frames of groups behind them.
bool Mailbox::receive_envelopes(std::vector<Record*>& finished) {
  bool progressed = false;
  const auto receive_over = [&](int rank, const PeerChannel& channel) {
    if (!channel.has_envelope()) return;
    open(peer(rank));
    progressed |= receive_from(peer(rank), finished) > 0;
  };
  if (channels_ != nullptr) channels_->for_each(receive_over);
  const std::uint32_t sent = sent_to_us_->messages.load(std::memory_order_seq_cst);
  if (sent == count_at_last_read_) return progressed;
  count_at_last_read_ = sent;
  for (Peer& from : peers_) {
    if (!from.in || from.rank == doorbells_.rank()) continue;
    const int count = receive_from(from, finished);
    if (count == kEnvelopesPerRound) count_at_last_read_ = sent - 1;  // the next round reads on
    progressed |= count > 0;
  }
  return progressed;
}

int Mailbox::receive_from(Peer& from, std::vector<Record*>& finished) {
  int count = 0;
  for (; count < kEnvelopesPerRound && !broken_; ++count) {
    const auto bytes = from.try_receive();
    if (!bytes) break;
    const Status status = handle(from, *bytes, finished);
    if (!status.ok())
      broken_ = Status::stop(format_text("rank {}: {}", from.rank, status.message()));
  }
  return count;
}

Status Mailbox::handle(Peer& from, std::span<const std::byte> bytes,
                       std::vector<Record*>& finished) {
  FARANDOLE_TRY_ASSIGN(auto opened, open_envelope(bytes));
  if (auto* const offer = std::get_if<Offer>(&opened.envelope))
    return handle_offer(from, std::move(*offer), finished);
  // Our calls with this peer have ended. After a death, a peer that still runs may not know this
  // yet.
  if (from.gone) return {};
  if (const auto* const acceptance = std::get_if<Acceptance>(&opened.envelope))
    return handle_acceptance(from, acceptance->id, finished);
  if (const auto* const refusal = std::get_if<Refusal>(&opened.envelope))
    return handle_refusal(from, *refusal, finished);
  return handle_data(from, std::get<DataHeader>(opened.envelope).id, opened.data, finished);
}

Status Mailbox::handle_offer(Peer& from, Offer offer, std::vector<Record*>& finished) {
  if (offer.id != ++from.last_received_id)
    return Status::stop(format_text("offered message {} instead of message {}, a bug in Farandole",
                                    offer.id, from.last_received_id));
  if (from.gone && !offer.is_complete()) return {};  // its data will not arrive
  const auto found = std::ranges::find_if(
      posted_, [&](const Posted& posted) { return posted.matches(offer, from.rank); });
  if (found == posted_.end()) {
    from.offers.push_back({std::move(offer), ++arrivals_});
    return {};
  }
  const Posted posted = std::move(*found);
  posted_.erase(found);
  answer(from, offer, posted, finished);
  return {};
}

Result<std::map<std::uint64_t, Mailbox::Sending>::iterator> Mailbox::Peer::answered(
    std::uint64_t id) {
  const auto found = sending.find(id);
  const bool was_early = found == sending.end();
  if (was_early ? early == 0 : found->second.accepted)
    return Status::stop(
        format_text("answered message {}, which needs no answer, a bug in Farandole", id));
  if (was_early) --early;
  return found;
}

Status Mailbox::handle_acceptance(Peer& from, std::uint64_t id, std::vector<Record*>& finished) {
  FARANDOLE_TRY_ASSIGN(const auto found, from.answered(id));
  if (found == from.sending.end()) return {};
  if (found->second.bytes > 0) {
    record_running(*found->second.record);
    found->second.accepted = true;
    from.accepted.push_back(id);
    ++unsent_;
    return {};
  }
  finished.push_back(found->second.record);
  from.sending.erase(found);
  return {};
}

Status Mailbox::handle_refusal(Peer& from, const Refusal& refusal, std::vector<Record*>& finished) {
  FARANDOLE_TRY_ASSIGN(const auto found, from.answered(refusal.id));
  if (found == from.sending.end()) return {};
  fail(*found->second.record, Status::fix_call(refusal.text), finished);
  from.sending.erase(found);
  return {};
}

Status Mailbox::handle_data(Peer& from, std::uint64_t id, std::span<const std::byte> data,
                            std::vector<Record*>& finished) {
  const auto found = from.receiving.find(id);
  const std::size_t left =
      found == from.receiving.end()
          ? 0
          : byte_count(found->second.record->submission) - found->second.received;
  if (data.empty() || data.size() > left)
    return Status::stop(
        format_text("sent {} bytes of message {}, which has {} left, a bug in "
                    "Farandole",
                    data.size(), id, left));
  Receiving& receiving = found->second;
  std::memcpy(static_cast<std::byte*>(receiving.record->submission.output) + receiving.received,
              data.data(), data.size());
  receiving.received += data.size();
  if (data.size() < left) return {};
  finish_receive(*receiving.record, from.rank, finished);
  from.receiving.erase(found);
  return {};
}

bool Mailbox::send_envelopes(Peer& to, std::vector<Record*>& finished) {
  bool progressed = false;
  while (!to.unsent.empty() && to.try_send(to.unsent.front().bytes)) {
    if (Record* const done = to.unsent.front().completes) finished.push_back(done);
    to.unsent.pop_front();
    --unsent_;
    progressed = true;
  }
  return progressed;
}

// Sends one message after another, each as far as there is room.
bool Mailbox::send_data(Peer& to, std::vector<Record*>& finished) {
  bool progressed = false;
  for (int count = 0; count < kEnvelopesPerRound && !to.accepted.empty(); ++count) {
    const auto found = to.sending.find(to.accepted.front());
    Sending& sending = found->second;
    const auto* const data = static_cast<const std::byte*>(sending.record->submission.input);
    const std::span part(data + sending.sent, std::min(kPartBytes, sending.bytes - sending.sent));
    if (!to.try_send(encode(DataHeader{found->first}), part)) return progressed;
    progressed = true;
    sending.sent += part.size();
    if (sending.sent < sending.bytes) continue;
    finished.push_back(sending.record);
    to.sending.erase(found);
    to.accepted.pop_front();
    --unsent_;
  }
  return progressed;
}

bool Mailbox::is_moving_data() const {
  return !doorbells_.closed_by() && std::ranges::any_of(peers_, [this](const Peer& one) {
    return !one.gone && !doorbells_.has_left(one.rank) &&
           !(one.unsent.empty() && one.accepted.empty() && one.receiving.empty());
  });
}

void Mailbox::end_peer(int rank, const Status& status, std::vector<Record*>& finished) {
  Peer& gone = peer(rank);
  if (gone.gone) return;
  gone.gone = status;
  for (const Unsent& unsent : gone.unsent)
    if (unsent.completes != nullptr) fail_because(*unsent.completes, status, finished);
  for (const auto& [id, sending] : gone.sending) fail_because(*sending.record, status, finished);
  for (const auto& [id, receiving] : gone.receiving)
    fail_because(*receiving.record, status, finished);
  unsent_ -= gone.unsent.size() + gone.accepted.size();
  gone.unsent.clear();
  gone.accepted.clear();
  gone.sending.clear();
  gone.receiving.clear();
  std::erase_if(gone.offers, [](const Offered& offered) { return !offered.offer.is_complete(); });
  std::erase_if(posted_, [&](const Posted& posted) {
    if (!posted.missing_source(peers_)) return false;
    if (posted.record != nullptr) fail_because(*posted.record, status, finished);
    return true;
  });
}

void Mailbox::forget_group(GroupId group) {
  std::erase_if(posted_, [group](const Posted& posted) { return posted.group == group; });
  for (Peer& from : peers_)
    std::erase_if(from.offers, [&](const Offered& one) {
      if (one.offer.group != group) return false;
      if (one.offer.call_error.empty()) post(from, Acceptance{one.offer.id});
      return true;
    });
}

void Mailbox::end(const Status& status, std::vector<Record*>& finished) {
  if (ended_) return;
  ended_ = status;
  for (const Peer& other : peers_)
    if (other.rank != doorbells_.rank()) end_peer(other.rank, status, finished);
}

}  // namespace farandole
