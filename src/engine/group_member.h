// GroupMember: our part in one group. Carries announcements and steps between Agreement and the
// message rings, and runs the group's steps one after another. Never blocks; only the holder of
// the baton comes in here.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collective/chooser.h"
#include "collective/group.h"
#include "coordination/agreement.h"
#include "engine/formation.h"
#include "engine/submission_table.h"
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

  // One round: messages in, decisions, the current step, messages out. Records that got their
  // outcome are appended to `finished`. True if anything moved.
  bool advance(std::vector<Record*>& finished);

  // Ends everything in flight with kRebuildGroup because of `status`; nothing moves afterwards.
  // Only the first end counts.
  void end(const Status& status, std::vector<Record*>& finished);
  // Why the group is over, also when advance() found out by itself; nothing while it goes on.
  const std::optional<Status>& ended() const { return ended_; }

  // Messages wait for room in a ring: advance() must come again when the bell has rung.
  bool has_unsent() const;

 private:
  struct Line {  // to and from one peer
    MessageRing out;
    MessageRing in;
    std::deque<Bytes> waiting;  // no room in the ring yet
  };

  bool receive_messages(std::vector<Record*>& finished);
  bool take_decisions();
  bool run_step(std::vector<Record*>& finished);
  CollectiveStep make_step(const Decision& decision);
  void finish_decision(std::vector<Record*>& finished);
  bool send_messages();

  GroupId id_;
  FlightRecorder& recorder_;
  const Clock& clock_;
  std::shared_ptr<Segment> segment_;  // of the group; shared by the engines of one process
  FlagBoard board_;
  Group group_;
  Agreement agreement_;
  std::map<int, Line> lines_;  // by member: the coordinator has all, a follower member 0 only
  std::map<std::string, Record*> in_flight_;
  std::deque<Decision> decided_;  // the first one is being run
  std::optional<CollectiveStep> step_;
  std::optional<Status> ended_;
};

}  // namespace farandole
