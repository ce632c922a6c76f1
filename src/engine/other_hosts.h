// OtherHosts: connects a member of a group with the members on other hosts. It keeps the member's
// lane, the channels for control messages between the leaders of the hosts, and the ends of the
// group that other hosts have sent.
//
// When a member has left, the members on its host finish the steps that all hosts have entered, and
// end the group. Then the leader of that host (its lowest member) sends the end to the other
// leaders: a message that says which steps its host has completed. Each other leader first
// completes these steps, and then forwards this end to the members on its own host, through the
// group's memory. So all hosts complete the same steps, although messages take different times.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "channels/channels.h"
#include "channels/group_lane.h"
#include "collective/group_memory.h"
#include "formation/formation.h"

namespace farandole {

// Only the holder of the progress lock may use it.
class OtherHosts {
 public:
  // For a group that has members on several hosts. `channels`, `formation` and the group's memory
  // must outlive this object. `memory` belongs to the members on this host. Any thread may call
  // this constructor.
  OtherHosts(const FormedGroup& formed_group, const Formation& formation, Channels& channels,
             const GroupMemory& memory);

  // Begins to connect to the members with which this one exchanges data. Call it first, and once.
  void connect(TimePoint now);
  // Returns the value for Group::parts. The lane belongs to this object.
  HostParts parts();
  bool is_leader() const { return local_member_ == 0; }

  // Control messages to and from the leaders of other hosts; only for leaders.
  bool has_member(int member) const { return leaders_.contains(member); }
  void send_message(int member, Bytes message) {
    leaders_.at(member)->send_message(id_, std::move(message));
  }
  // Returns the sender and the message; empty if no message has arrived.
  std::optional<std::pair<int, Bytes>> next_message();

  // On a leader: tells the other leaders that this host has completed the steps up to `completed`,
  // and has ended the group because `rank` has left.
  void send_end(std::uint32_t completed, int rank, const std::string& reason);
  // On a leader: keeps an end that another leader has sent. Only the first end counts.
  void keep_end(const GroupEnd& end);
  // On a leader: forwards the kept end to this host's members, if they can complete all steps that
  // the other host has completed. `completed` is the last sequence that this leader has completed.
  void forward_end(std::uint32_t completed);
  // The end that the leader has forwarded to the members of this host; empty before that.
  std::optional<GroupEnd> forwarded_end() const;

  // Drops the borrowed memory of the current step, and all frames that arrive for this group from
  // now on. Returns false if the lane can no longer be used, because a frame is half sent.
  bool stop();

 private:
  GroupId id_;
  Channels& channels_;
  std::vector<int> ranks_;  // the ranks of all members, on all hosts
  HostParts parts_;
  int local_member_ = 0;  // this member's index on this host
  std::vector<int> local_ranks_;
  Doorbells& doorbells_;
  GroupMemory memory_;
  std::optional<GroupLane> lane_;           // empty if no lane has the index local_member_
  std::map<int, PeerChannel*> leaders_;     // by leader; empty if this member is no leader
  std::optional<GroupEnd> end_to_forward_;  // the end from keep_end(), until it is forwarded
  bool has_sent_end_ = false;
};

}  // namespace farandole
