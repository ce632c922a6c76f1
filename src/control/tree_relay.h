// TreeRelay: how one member passes on the control messages of its group. Announcements go up the
// tree to the coordinator, and the coordinator's stream goes down the tree to every member.
//
// A leader merges equal announcements of different members into one, which names these members.
// While the parent of a leader has not acknowledged two of the leader's messages, the leader
// collects and merges announcements. So a leader sends few messages even if the members below it
// announce at different times, and no timer is needed. The announcements of one member reach the
// coordinator in the order in which the member has made them. There is one exception: an
// announcement of a call may overtake older announcements of other calls, because calls may be
// announced in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "control/member_set.h"
#include "control/messages.h"
#include "control/tree.h"
#include "farandole/status.h"

namespace farandole {

class TreeRelay {
 public:
  explicit TreeRelay(TreePosition position) : position_(std::move(position)) {}

  bool is_root() const { return !position_.parent; }
  std::optional<int> parent() const { return position_.parent; }

  // Queues announcements for the parent. The root must not call it.
  void add(const Announcements& announcements);
  // Decodes a child's message, and acknowledges the message if the child also sends for other
  // members. Errors: kStop if the sender is not a child, if it speaks for members that are not
  // below it, or if the bytes are not valid.
  Result<Announcements> receive_from_child(int from, std::span<const std::byte> message);
  // Call it when the parent has acknowledged one of this member's messages. Errors: kStop
  // if no message is unacknowledged.
  Status record_acknowledgement();
  // Queues a message of the stream for every child.
  void pass_down(const Bytes& message);
  // Returns the next message to send; empty if there is none.
  std::optional<OutgoingMessage> next_message();

 private:
  void merge(const MemberSet& from, const Announcement& item);
  Announcements* find_equal_announcement(const MemberSet& from, const Announcement& item);
  void pack_queue();

  TreePosition position_;
  std::vector<Announcements> queue_;  // each has one item and is not packed yet
  // The positions in queue_ of the announcements of calls, by a digest of the call.
  std::unordered_multimap<std::uint64_t, std::size_t> positions_of_calls_;
  std::size_t unacknowledged_count_ = 0;  // messages to the parent
  std::deque<OutgoingMessage> outgoing_;  // to send
};

}  // namespace farandole
