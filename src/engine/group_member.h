// GroupMember: this rank's part in one group. It exchanges the messages of Agreement over message
// rings or channels, enters each decision on the flag board, and runs the decision. It never
// blocks. Only the holder of the progress lock may call connect() and the functions below it.
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
#include "engine/other_hosts.h"
#include "formation/formation.h"
#include "submission/submission_table.h"
#include "timeline/flight_record.h"
#include "transport/shm/message_ring.h"

namespace farandole {

class GroupMember {
 public:
  // `formation`, `recorder`, `clock` and `channels` must outlive this object. `channels` may be
  // null if all ranks of the job are on this host.
  GroupMember(const FormedGroup& formed_group, const Formation& formation, FlightRecorder& recorder,
              const Clock& clock, Channels* channels = nullptr);
  GroupMember(const GroupMember&) = delete;
  GroupMember& operator=(const GroupMember&) = delete;

  GroupId id() const { return id_; }
  const std::vector<int>& ranks() const { return ranks_; }

  // Allocates staging memory in huge pages, if the kernel has any. Call it before the first step.
  void allocate_huge_pages();

  // Begins to connect to the members on other hosts. Call it before submit() and advance().
  void connect();
  // Whether the group can run the operation; the same on all members. Errors: kFixCall.
  Status supports(Operation operation) const;
  // Adds a call. The record must keep its address until advance() has returned it.
  void submit(Record& record);

  // Runs one round: receives messages, advances the current decision, sends messages. Appends the
  // finished records to `finished`. Returns true if it made progress.
  bool advance(std::vector<Record*>& finished);
  // Sets the time. Call it at deadline() at the latest. advance() does not set the time, because it
  // would have to read the clock.
  void tick(TimePoint now);
  std::optional<TimePoint> deadline() const;

  // From now on, this rank enters no more steps, because it is about to end its part in the group.
  // Returns false if all members have entered the current step; then advance() must finish this
  // step. Returns true if there is no current step, or if certainly no member runs it.
  bool stop_entering();
  // Whether a member on this host has left or any rank has died. Such a rank stores no more data.
  bool any_member_gone() const { return board_.any_member_gone(); }
  // True if the group has members on several hosts, and this member runs a step and knows that all
  // members have entered it. Such a step can finish even if a member has left, because all missing
  // data is on its way.
  bool must_finish_step();

  // Ends all calls in flight with kRebuildGroup because of `status`, and advances no step any more.
  // While other members may still write to memory that this rank has exposed, the calls stay in
  // flight, and a later advance() finishes them. At deadline(), tick() stops sharing the memory.
  // Only the first end() has an effect. Returns true if it gives up a step that members on other
  // hosts may complete: all members on this host have entered the step, and the group has members
  // on several hosts.
  bool end(const Status& status, std::vector<Record*>& finished);
  bool waits_for_writers() const { return writers_deadline_.has_value(); }

  // The following three functions do nothing if all members are on this host; see OtherHosts.
  // Tells the other hosts that the group has ended here because `rank` has left.
  void send_group_end(int rank, const std::string& reason);
  // Handles an end that another host has sent by send_group_end().
  void handle_group_end(const GroupEnd& end);
  // Returns the end of the group on another host; empty if no other host has ended the group, or if
  // this host still lacks steps that the other host has completed.
  std::optional<GroupEnd> end_on_other_host() const;
  // Why the group is over; empty if it is not. advance() may end the group, too.
  const std::optional<Status>& end_status() const { return end_status_; }

  // Whether messages wait for room in a ring. If so, call advance() again after the next doorbell.
  bool has_unsent() const { return !end_status_ && unsent_count_ > 0; }

 private:
  struct PeerRings {  // the message rings to and from one peer
    MessageRing ring_out;
    MessageRing ring_in;
    std::deque<Bytes> to_send;  // messages for which the ring has no room yet
  };

  // The stage of the current decision.
  enum class Stage : std::uint8_t {
    kNone,          // there is no decision
    kPack,          // copies the tensors of a fused step together, before this rank enters it
    kRun,           // enters the decision and runs it
    kMispredicted,  // the members have entered different steps, so this step will be rolled back
    kUnpack,        // copies the tensors of a fused step back
  };

  void open_rings(const GroupMemory& memory);
  bool receive_messages(std::vector<Record*>& finished);
  bool receive_from_rings(std::vector<Record*>& finished);
  bool receive_from_other_hosts(std::vector<Record*>& finished);
  void handle_message(int member, std::span<const std::byte> message,
                      std::vector<Record*>& finished);
  bool run_decision(std::vector<Record*>& finished);
  bool begin_decision(std::vector<Record*>& finished);
  void drop_rolled_back_step();
  bool run_step(std::vector<Record*>& finished);
  Status prepare_fusion(const Step& step);
  CollectiveStep make_step(const Decision& decision);
  CollectiveCall call_of(const Step& step);
  void record_running();
  void finish_decision(std::vector<Record*>& finished);
  void finish(Record& record, std::vector<Record*>& finished);
  bool send_messages();
  void drop_step();
  bool any_member_may_write() const;
  void unshare_memory(TimePoint now);
  bool finish_ended(std::vector<Record*>& finished);

  GroupId id_;
  const Formation& formation_;
  FlightRecorder& recorder_;
  const Clock& clock_;
  std::shared_ptr<Segment> segment_;  // maps the memory of the group's members on this host
  std::vector<int> ranks_;            // the ranks of all members, on all hosts
  FlagBoard board_;                   // the flags of the members on this host
  Group group_;
  FusionBuffer fusion_;
  Agreement agreement_;                      // borrows the signatures of the records
  std::unique_ptr<OtherHosts> other_hosts_;  // null if all members are on this host
  // The message rings with the other members on this host, or only with their leader; see
  // GroupMemory. The key is the member.
  std::map<int, PeerRings> rings_;
  // counts the messages to the leader; null if this rank is not the leader
  MessageRing::Counter* sent_to_leader_ = nullptr;
  std::uint32_t messages_read_ = 0;  // the value of `sent_to_leader_` at the last read
  std::size_t unsent_count_ = 0;     // how many messages are in all lists `to_send`
  std::vector<Record*> in_flight_;
  const Decision* decision_ = nullptr;  // owned by agreement_; valid until completion or rollback
  Stage stage_ = Stage::kNone;
  bool has_recorded_running_ = false;  // whether the flight record knows that the step is running
  std::optional<CollectiveStep> step_;
  HeapPin pin_;                  // pins the memory that the step may expose
  bool may_enter_ = true;        // false after stop_entering()
  std::uint32_t completed_ = 0;  // the sequence that this member has completed last
  std::optional<Status> end_status_;
  // set if the group has ended and other members may still write to `exposed_output_`
  std::optional<TimePoint> writers_deadline_;
  std::span<const std::byte> exposed_output_;
};

}  // namespace farandole
