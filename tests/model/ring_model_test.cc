// Explores the message ring: an end of the ring sleeps if it has nothing to receive, or no room to
// send.
#include <gmock/gmock.h>

#include <cstring>
#include <iostream>
#include <memory>
#include <string>

#include "automaton.h"
#include "explorer.h"
#include "transport/shm/message_ring.h"

namespace farandole::model {
namespace {

constexpr std::size_t kRingBytes = 32;  // two messages of one word each
using ModelDoorbells = BasicDoorbells<ModelAtomics>;
using Ring = BasicMessageRing<ModelAtomics, kRingBytes>;

enum class Bug : std::uint8_t {
  kNone,
  kWeakPosition,
  kPositionBeforeBytes,
  kRoomWithoutBell,
  kCountBeforePosition,
  kCountSeenLate,
};

struct RingEnds {
  RingEnds(Bug planted, bool counts) : bug(planted) {
    if (counts) sent = reinterpret_cast<Ring::Counter*>(arena.allocate(sizeof(Ring::Counter)));
    if (counts) arena.mark(&sent->messages, "sent");
    const auto* bytes = memory + 2 * sizeof(Ring::Position);
    arena.mark(memory, "written", Site::kWord);
    arena.mark(memory + sizeof(Ring::Position), "read", Site::kDone);
    for (std::size_t offset = 0; offset < kRingBytes; offset += 8)
      arena.mark(bytes + offset, "byte " + std::to_string(offset), Site::kPayload);
    for (int rank = 0; rank < 2; ++rank) {
      auto* lines = reinterpret_cast<ModelDoorbells::Line*>(bells + sizeof(ModelDoorbells::Header));
      arena.mark(&lines[rank].bell, "bell " + std::to_string(rank), Site::kBell);
      arena.mark(&lines[rank].asleep, "asleep " + std::to_string(rank), Site::kAsleep);
    }
    arena.store_bugs.weak(Site::kWord) = bug == Bug::kWeakPosition;
    arena.store_bugs.word_before_payload = bug == Bug::kPositionBeforeBytes;
  }

  Bug bug;
  Arena arena;
  std::byte* bells = arena.allocate(ModelDoorbells::bytes_needed(2));
  std::byte* memory = arena.allocate(Ring::bytes_needed());
  ModelDoorbells sender{bells, 0, 2};
  ModelDoorbells receiver{bells, 1, 2};
  Ring::Counter* sent = nullptr;
};

// One end of the ring: sends the numbers 1 … count, or receives and checks them. It sleeps if it
// can do nothing.
class RingEnd final : public CopiedThread<RingEnd> {
 public:
  RingEnd(RingEnds& ends, bool sends, Value count)
      : ends_(&ends),
        doorbells_(sends ? &ends.sender : &ends.receiver),
        sends_(sends),
        count_(count) {}

  void write_key(ByteWriter& key) const override {
    for (const bool flag : {sends_, prepared_, checked_}) key.put(flag);
    key.put(next_);
    key.put(ticket_);
    key.put(seen_);
  }
  bool has_finished() const override { return next_ > count_; }

  void run() override {
    if (!prepared_) {
      ticket_ = doorbells_->prepare_sleep();
      prepared_ = true;
    } else if (!checked_) {
      checked_ = true;
      const Value messages = transfer();
      if (messages == 0) return;
      next_ += messages;
      wake_up();
      doorbells_->cancel_sleep();
    } else {
      doorbells_->sleep(ticket_, {});
      wake_up();
    }
  }

 private:
  Value transfer() {
    const bool counts_early = ends_->bug == Bug::kCountBeforePosition;
    Ring ring(ends_->memory, *doorbells_, sends_ ? 1 : 0, counts_early ? nullptr : ends_->sent);
    if (sends_) return send(ring) ? 1 : 0;
    return ends_->sent == nullptr ? (receive(ring, next_) ? 1 : 0) : receive_counted(ring);
  }
  bool send(Ring& ring) {
    if (ends_->bug == Bug::kCountBeforePosition)
      ends_->sent->messages.fetch_add(1, std::memory_order_seq_cst);
    Bytes message(sizeof(Value));
    std::memcpy(message.data(), &next_, sizeof(Value));
    return ring.try_send(message);
  }
  // Like the engine, reads the ring only if the count of sent messages has changed, and then
  // empties the ring.
  Value receive_counted(Ring& ring) {
    const auto count = [this] { return ends_->sent->messages.load(std::memory_order_seq_cst); };
    const std::uint32_t sent = count();
    if (sent == seen_) return 0;
    seen_ = sent;
    Value received = 0;
    while (next_ + received <= count_ && receive(ring, next_ + received)) ++received;
    if (ends_->bug == Bug::kCountSeenLate) seen_ = count();
    return received;
  }
  bool receive(Ring& ring, Value expected) {
    ends_->arena.execution().mute(ends_->bug == Bug::kRoomWithoutBell);
    const auto message = ring.try_receive();
    ends_->arena.execution().mute(false);
    if (!message) return false;
    Value value = 0;
    if (message->size() == sizeof(Value)) std::memcpy(&value, message->data(), sizeof(Value));
    require(ends_->arena, value == expected, "another message was received than was sent");
    return true;
  }
  void wake_up() {
    prepared_ = false;
    checked_ = false;
    ticket_ = 0;
  }

  RingEnds* ends_;  // borrowed
  ModelDoorbells* doorbells_;
  bool sends_;
  Value count_;
  Value next_ = 1;
  std::uint32_t ticket_ = 0;
  std::uint32_t seen_ = 0;  // the count of sent messages at the last check
  bool prepared_ = false;
  bool checked_ = false;
};

Finding explore_ring(Bug bug, bool partial_store_order = false, bool counts = false) {
  RingEnds ends(bug, counts);
  Scenario scenario;
  scenario.arena = &ends.arena;
  const Value messages = counts ? 3 : 5;
  scenario.threads.push_back(
      {.name = "sender", .start = std::make_unique<RingEnd>(ends, true, messages)});
  scenario.threads.push_back(
      {.name = "receiver", .member = 1, .start = std::make_unique<RingEnd>(ends, false, messages)});
  const Finding finding = explore(scenario, {.partial_store_order = partial_store_order,
                                             .depth_first = counts && bug != Bug::kNone});
  std::cout << "message ring: " << name_of(finding.verdict) << " " << finding.text << " ("
            << finding.states << " states)\n";
  return finding;
}

TEST(RingModel, NoMessageIsLostOrTornAndNoThreadSleepsForEver) {
  EXPECT_EQ(explore_ring(Bug::kNone).verdict, Verdict::kHolds);
  EXPECT_EQ(explore_ring(Bug::kNone, true).verdict, Verdict::kHolds);
}

TEST(RingModel, NoThreadSleepsForEverIfMessagesAreCounted) {
  EXPECT_EQ(explore_ring(Bug::kNone, false, true).verdict, Verdict::kHolds);
  EXPECT_EQ(explore_ring(Bug::kNone, true, true).verdict, Verdict::kHolds);
  EXPECT_EQ(explore_ring(Bug::kCountBeforePosition, false, true).verdict, Verdict::kDeadlock);
  EXPECT_EQ(explore_ring(Bug::kCountSeenLate, false, true).verdict, Verdict::kDeadlock);
}

TEST(RingModel, PlantedBugsAreFound) {
  EXPECT_EQ(explore_ring(Bug::kWeakPosition).verdict, Verdict::kDeadlock);
  EXPECT_EQ(explore_ring(Bug::kPositionBeforeBytes).verdict, Verdict::kViolation);
  EXPECT_EQ(explore_ring(Bug::kRoomWithoutBell).verdict, Verdict::kDeadlock);
}

}  // namespace
}  // namespace farandole::model
