// The message ring, explored: two ends that sleep when there is nothing to receive, or no room.
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

enum class Bug : std::uint8_t { kNone, kWeakPosition, kPositionBeforeBytes, kRoomWithoutBell };

struct Ends {
  explicit Ends(Bug planted) : bug(planted) {
    const auto* bytes = memory + 2 * sizeof(Ring::Position);
    arena.mark(memory, "written", Site::kWord);
    arena.mark(memory + sizeof(Ring::Position), "read", Site::kDone);
    for (std::size_t at = 0; at < kRingBytes; at += 8)
      arena.mark(bytes + at, "byte " + std::to_string(at), Site::kPayload);
    for (int rank = 0; rank < 2; ++rank) {
      auto* lines = reinterpret_cast<ModelDoorbells::Line*>(bells + sizeof(ModelDoorbells::Header));
      arena.mark(&lines[rank].bell, "bell " + std::to_string(rank), Site::kBell);
      arena.mark(&lines[rank].asleep, "asleep " + std::to_string(rank), Site::kAsleep);
    }
    arena.plants.weak(Site::kWord) = bug == Bug::kWeakPosition;
    arena.plants.word_before_payload = bug == Bug::kPositionBeforeBytes;
  }

  Bug bug;
  Arena arena;
  std::byte* bells = arena.allocate(ModelDoorbells::bytes_needed(2));
  std::byte* memory = arena.allocate(Ring::bytes_needed());
  ModelDoorbells sender{bells, 0, 2};
  ModelDoorbells receiver{bells, 1, 2};
};

// One end: sends, or receives and checks, the numbers 1 … count; sleeps when it cannot.
class End final : public CopiedThread<End> {
 public:
  End(Ends& ends, bool sends, Value count)
      : ends_(&ends),
        doorbells_(sends ? &ends.sender : &ends.receiver),
        sends_(sends),
        count_(count) {}

  void write_key(ByteWriter& key) const override {
    for (const bool flag : {sends_, prepared_, looked_}) key.put(flag);
    key.put(next_);
    key.put(ticket_);
  }
  bool finished() const override { return next_ > count_; }

  void run() override {
    if (!prepared_) {
      ticket_ = doorbells_->prepare_sleep();
      prepared_ = true;
    } else if (!looked_) {
      looked_ = true;
      if (!move()) return;
      ++next_;
      wake_up();
      doorbells_->cancel_sleep();
    } else {
      doorbells_->sleep(ticket_, {});
      wake_up();
    }
  }

 private:
  bool move() {
    Ring ring(ends_->memory, *doorbells_, sends_ ? 1 : 0);
    return sends_ ? send(ring) : receive(ring);
  }
  bool send(Ring& ring) {
    Bytes message(sizeof(Value));
    std::memcpy(message.data(), &next_, sizeof(Value));
    return ring.try_send(message);
  }
  bool receive(Ring& ring) {
    ends_->arena.execution().mute(ends_->bug == Bug::kRoomWithoutBell);
    const auto message = ring.try_receive();
    ends_->arena.execution().mute(false);
    if (!message) return false;
    Value value = 0;
    if (message->size() == sizeof(Value)) std::memcpy(&value, message->data(), sizeof(Value));
    require(ends_->arena, value == next_, "another message was received than was sent");
    return true;
  }
  void wake_up() {
    prepared_ = false;
    looked_ = false;
    ticket_ = 0;
  }

  Ends* ends_;  // borrowed
  ModelDoorbells* doorbells_;
  bool sends_;
  Value count_;
  Value next_ = 1;
  std::uint32_t ticket_ = 0;
  bool prepared_ = false;
  bool looked_ = false;
};

Finding explore_ring(Bug bug, bool partial_store_order = false) {
  Ends ends(bug);
  Scenario scenario;
  scenario.arena = &ends.arena;
  scenario.threads.push_back({.name = "sender", .start = std::make_unique<End>(ends, true, 5)});
  scenario.threads.push_back(
      {.name = "receiver", .member = 1, .start = std::make_unique<End>(ends, false, 5)});
  const Finding finding = explore(scenario, {.partial_store_order = partial_store_order});
  std::cout << "message ring: " << name_of(finding.verdict) << " " << finding.text << " ("
            << finding.states << " states)\n";
  return finding;
}

TEST(RingModel, NoMessageIsLostOrTornAndNobodySleepsForEver) {
  EXPECT_EQ(explore_ring(Bug::kNone).verdict, Verdict::kHolds);
  EXPECT_EQ(explore_ring(Bug::kNone, true).verdict, Verdict::kHolds);
}

TEST(RingModel, PlantedBugsAreFound) {
  EXPECT_EQ(explore_ring(Bug::kWeakPosition).verdict, Verdict::kDeadlock);
  EXPECT_EQ(explore_ring(Bug::kPositionBeforeBytes).verdict, Verdict::kViolation);
  EXPECT_EQ(explore_ring(Bug::kRoomWithoutBell).verdict, Verdict::kDeadlock);
}

}  // namespace
}  // namespace farandole::model
