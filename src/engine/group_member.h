// GroupMember: our part in one group. Carries messages between Agreement and the message rings, and
// runs what it decides, one decision after another, each entered on the flag board. Never blocks;
// only the holder of the progress lock comes in here.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "collective/chooser.h"
#include "collective/fusion_buffer.h"
#include "collective/group.h"
#include "coordination/agreement.h"
#include "engine/formation.h"
#include "submission/submission_table.h"
#include "timeline/flight_record.h"
#include "transport/shm/message_ring.h"

namespace farandole {

class GroupMember {
 public:
  // `formation`, `recorder` and `clock` outlive this.
  GroupMember(const FormedGroup& formed, const Formation& formation, FlightRecorder& recorder,
              const Clock& clock);
  GroupMember(const GroupMember&) = delete;
  GroupMember& operator=(const GroupMember&) = delete;

  GroupId id() const { return id_; }
  const std::vector<int>& ranks() const { return group_.ranks; }

  // For our staging memory, before the first step: it takes memory at once.
  void take_huge_pages();

  // Takes part in it from now on. The record stays where it is until it comes out of advance().
  void submit(Record& record);

  // One round: messages in, the current decision, messages out. Records that got their outcome are
  // appended to `finished`. True if anything moved.
  bool advance(std::vector<Record*>& finished);
  // Time passes, of which advance() knows nothing. Needed at deadline() at the latest.
  void tick(TimePoint now);
  std::optional<TimePoint> deadline() const;

  // This rank wants to end its part in the group: it enters no further step. True if none is under
  // way for it, or no member ever runs the one that is. False if all members have entered it:
  // advance() goes on with it.
  bool stop_entering();
  // A member has left, or a rank has died: what it has not stored by now it never will.
  bool any_member_gone() const { return board_.any_member_gone(); }

  // Ends everything in flight with kRebuildGroup because of `status`; no step moves afterwards.
  // While other members may still write into memory that this rank has exposed them, its calls wait
  // for that in advance(), until deadline() at most; then tick() takes the memory back. Only the
  // first end counts.
  void end(const Status& status, std::vector<Record*>& finished);
  bool waits_for_writers() const { return writers_deadline_.has_value(); }
  // Why the group is over, also when advance() found out by itself; nothing while it goes on.
  const std::optional<Status>& ended() const { return ended_; }

  // Messages wait for room in a ring: advance() must come again when the bell has rung.
  bool has_unsent() const { return !ended_ && unsent_ > 0; }

 private:
  struct Line {  // to and from one peer
    MessageRing out;
    MessageRing in;
    std::deque<Bytes> waiting;  // no room in the ring yet
  };

  // How far the current decision is.
  enum class Stage : std::uint8_t {
    kNone,          // there is none
    kPack,          // before we enter a fused step
    kRun,           // entered, or about to be
    kMispredicted,  // all have entered, and not alike: it will be rolled back
    kUnpack,        // a fused step is done
  };

  bool receive_messages(std::vector<Record*>& finished);
  bool run_decision(std::vector<Record*>& finished);
  bool begin_decision(std::vector<Record*>& finished);
  void forget_what_is_rolled_back();
  bool run_step(std::vector<Record*>& finished);
  Status settle_fusion(const Step& step);
  CollectiveStep make_step(const Decision& decision);
  CollectiveCall call_of(const Step& step);
  void note_that_it_runs();
  void finish_decision(std::vector<Record*>& finished);
  void finish(Record& record, std::vector<Record*>& finished);
  bool send_messages();
  void drop_step();
  bool any_member_may_write() const;
  void take_memory_back(TimePoint now);
  bool finish_ended(std::vector<Record*>& finished);

  GroupId id_;
  const Formation& formation_;
  FlightRecorder& recorder_;
  const Clock& clock_;
  std::shared_ptr<Segment> segment_;  // of the group; shared by the engines of one process
  FlagBoard board_;
  Group group_;
  FusionBuffer fusion_;
  Agreement agreement_;        // borrows the signatures of the records
  std::map<int, Line> lines_;  // by member: the coordinator has all, a follower member 0 only
  MessageRing::Counter* sent_to_us_ = nullptr;  // on the coordinator
  std::uint32_t received_ = 0;                  // what it counted when we looked last
  std::size_t unsent_ = 0;                      // messages in `waiting`
  std::vector<Record*> in_flight_;
  const Decision* decision_ = nullptr;  // borrowed from agreement_, until it is done or rolled back
  Stage stage_ = Stage::kNone;
  bool runs_ = false;  // and the flight record knows
  std::optional<CollectiveStep> step_;
  HeapPin pin_;         // of what the step may expose
  bool enters_ = true;  // until this rank wants to end
  std::optional<Status> ended_;
  std::optional<TimePoint> writers_deadline_;  // ended, and others may still write what we exposed
  std::span<const std::byte> exposed_output_;  // that
};

}  // namespace farandole
