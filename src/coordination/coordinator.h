// Coordinator: leads the agreement of a group; it runs on member 0. It matches the announcements of
// all members by name, and sends all members the same ordered stream of messages. In learn mode, a
// call whose name all members have announced becomes the next step, or is rejected. A member that
// has joined counts as having announced the call. In this mode, the coordinator also learns which
// steps repeat, and starts the plan when a repetition begins. While the group follows the plan,
// members announce only unplanned calls; when all members have announced the same unplanned call,
// the group must replan. In a replan, a member raises, the coordinator stops all members, each
// member reports its progress, and the coordinator's answer says which steps stay valid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "base/signature.h"
#include "control/member_set.h"
#include "control/messages.h"
#include "coordination/agreement_options.h"
#include "coordination/learner.h"
#include "coordination/name_table.h"
#include "coordination/rejection_text.h"
#include "coordination/replan.h"
#include "farandole/status.h"

namespace farandole {

class Coordinator {
 public:
  // `ranks` are the world ranks of the members, for error texts.
  Coordinator(std::vector<int> ranks, const AgreementOptions& options);

  // Takes an announcement of these members. After a stop, the caller must pass the announcements of
  // the coordinator's own member before those of other members. Errors: kStop, which says what is
  // wrong with the announcement.
  Status receive(const MemberSet& from, const Announcement& item);
  // The next message of the stream; empty if there is none. Every member must get all messages, in
  // this order.
  std::optional<Bytes> next_message() { return stream_.take(); }
  bool has_message() const { return !stream_.empty(); }

 private:
  enum class Mode { kQueue, kLearn, kPlan };
  // One signature that was announced under a name, and the members that announced it.
  struct Candidate {
    Signature signature;
    std::uint32_t id;  // the id in the announcements; 0 if they have no id
    MemberSet members;
    std::vector<SubmissionContext> contexts;  // by member
  };
  using Candidates = std::vector<Candidate>;

  struct Member {
    bool joined = false;
    std::uint32_t calls_before_join = 0;  // AnnounceJoin::calls
    // How many announcements the member must still repeat, because they used an id that the
    // coordinator had forgotten. Until it has repeated them, the member does not count as joined,
    // because it has submitted calls that the coordinator does not know yet.
    std::size_t announcements_due = 0;

    bool counts_as_joined() const { return joined && announcements_due == 0; }
  };

  Status apply(const MemberSet& from, const AnnounceInFull& item);
  Status apply(const MemberSet& from, const AnnounceById& item);
  Status apply(const MemberSet& from, const AnnounceAgain& item);
  Status apply(const MemberSet& from, const AnnounceJoin& item);
  Status apply(const MemberSet& from, const Raise& item);
  Status apply(const MemberSet& from, const Report& item);
  void stop_members(Raise raise);
  void send_answer();
  std::uint32_t learn_and_choose_fragment(const Replan& replan);
  void back_off(std::uint32_t fragments_run);
  Status record_announcement_in_full(const MemberSet& from, const Signature& signature,
                                     const SubmissionContext& context);
  Status record_announcement(const MemberSet& from, const Signature& signature, std::uint32_t id,
                             const SubmissionContext& context);
  MemberSet missing_members(const Candidates& candidates) const;
  bool is_complete(const Candidates& candidates) const;
  void recheck_if_joined(const MemberSet& members);
  void recheck_pending();
  void release_when_all_joined();
  void decide(const std::string& name, const Candidates& candidates);
  void reject(const std::string& name, std::string text);
  void issue_step(const Candidate& candidate);
  std::uint32_t find_plan_start(std::uint32_t id);
  void start_plan(std::uint32_t fragment);
  void publish_edits();
  std::uint32_t fragment_of(std::uint32_t id) const;
  std::uint32_t define(const Signature& signature);
  void forget(std::uint32_t id);
  std::vector<Variant> variants_of(const Candidates& candidates) const;
  RanksByNumber ranks_by_unnamed_number(const Candidates& candidates) const;
  std::vector<int> ranks_of(const MemberSet& members) const;
  Member& member(int number) { return members_[static_cast<std::size_t>(number)]; }

  std::vector<int> ranks_;
  std::vector<Member> members_;
  // The member that counts as having joined last: the joined member with the most calls before its
  // join. If several members have this number of calls, the highest member counts. Empty if no
  // member has joined. The result must not depend on clocks or on the order in which joins arrive:
  // the members may be on several hosts, and after a replan all joins arrive again.
  std::optional<int> member_joined_last_;
  std::size_t names_max_;
  NameTable names_;
  std::uint32_t id_defined_last_ = 0;
  Learner learner_;

  Mode mode_ = Mode::kQueue;
  std::optional<Replan> replan_;  // set while all members are stopped
  std::uint32_t generation_ = 1;
  std::uint32_t sequence_next_ = 1;  // the sequence of the next decision in learn mode
  // How many more synchronization points the coordinator lets pass before it starts the plan again.
  int sync_points_to_pass_ = 0;
  // The initial value of sync_points_to_pass_ at the last back_off().
  int back_off_last_ = 0;

  std::unordered_map<std::string, Candidates> pending_calls_;  // undecided calls, by name
  MessagePacker stream_;
};

}  // namespace farandole
