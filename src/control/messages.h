// The control messages of a group, as bytes. Followers send announcements, raises and reports to
// the coordinator. The coordinator sends one ordered stream, the same to every member. A message
// consists of its kind and of items; a message of announcements also says which members made them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/signature.h"
#include "control/member_set.h"
#include "control/submission_context.h"
#include "farandole/status.h"

namespace farandole {

inline constexpr std::size_t kMessageBytesMax = 16384;
// The longest text of a rejection. It fits into a message together with the call's name.
inline constexpr std::size_t kRejectionTextBytesMax = 8192;

struct OutgoingMessage {
  int to;       // a member
  Bytes bytes;  // the message, at most kMessageBytesMax
};

// When the second fragment of an edge follows the first: in the same superstep, or in the next one,
// after a synchronization point. The values are bits. A member that looks for the next fragment
// needs an edge of the kind kNextSuperstep if a quiescent point lies between its last entry and its
// oldest call.
enum class EdgeKind : std::uint8_t { kSameSuperstep = 1, kNextSuperstep = 2, kBoth = 3 };

// Follower → coordinator: "this call is ready here".
struct AnnounceInFull {
  Signature signature;
  SubmissionContext context;
  friend bool operator==(const AnnounceInFull&, const AnnounceInFull&) = default;
};
struct AnnounceById {
  std::uint32_t id;
  SubmissionContext context;
  friend bool operator==(const AnnounceById&, const AnnounceById&) = default;
};
// Repeats an AnnounceById, now with the signature, because the coordinator forgot the call's id
// before it decided on the call.
struct AnnounceAgain {
  Signature signature;
  SubmissionContext context;
  friend bool operator==(const AnnounceAgain&, const AnnounceAgain&) = default;
};
struct AnnounceJoin {       // the member has called join(), and submits no calls until ReleaseAll
  std::uint32_t calls = 0;  // how many calls it has submitted to the group since the last release
  friend bool operator==(const AnnounceJoin&, const AnnounceJoin&) = default;
};
// Asks for a replan, because the sender's prediction differs from what the group does.
struct Raise {
  enum class Cause : std::uint8_t {
    kMisprediction,  // a misprediction, or another reason to leave the plan: a join, an error, …
    kBucket,         // the plan's next bucket is not ready, but some calls of its fragment are
    kMissingEdge,    // no call of the expected fragments is ready, but calls of other fragments are
  };
  std::uint32_t generation = 1;
  std::uint32_t completed = 0;  // the sender's last completed sequence
  Cause cause = Cause::kMisprediction;
  std::uint32_t fragment = 0;  // the expected or current fragment; 0 if none
  // The index of the next bucket; at the end of the fragment, the number of buckets.
  std::uint32_t bucket = 0;
  // kBucket: the ids of the calls that are ready and belong to this bucket or to a later bucket of
  // the fragment. kMissingEdge: the fragments that have ready calls, in the order of submission.
  std::vector<std::uint32_t> ready = {};
  EdgeKind edge_kind = EdgeKind::kBoth;  // for kMissingEdge: the kind of the missing edge
  friend bool operator==(const Raise&, const Raise&) = default;
};
struct Report {  // how far a member had got when it was stopped
  std::uint32_t generation;
  std::uint32_t completed;         // last completed sequence
  std::uint8_t entered;            // whether the member has entered the next sequence: 0 or 1
  std::uint64_t identity;          // the identity of the entered step; 0 if there is none
  std::uint32_t quiescent_points;  // the highest such number of the calls that it has entered
  std::uint32_t fragments_run;     // how many fragments of the plan it has entered completely
  friend bool operator==(const Report&, const Report&) = default;
};
using Announcement =
    std::variant<AnnounceInFull, AnnounceById, AnnounceAgain, AnnounceJoin, Raise, Report>;
// The announcements of a message. Each member of `from` has made each of these announcements.
struct Announcements {
  MemberSet from;
  std::vector<Announcement> items;
  friend bool operator==(const Announcements&, const Announcements&) = default;
};

// Coordinator → every member; all members receive the following items in the same order.
struct Define {  // from now on this id stands for this signature
  std::uint32_t id;
  Signature signature;
  friend bool operator==(const Define&, const Define&) = default;
};
struct Forget {  // the id has no meaning any more and is never used again
  std::uint32_t id;
  friend bool operator==(const Forget&, const Forget&) = default;
};
struct Issue {  // the next step: all members run this call
  std::uint32_t generation;
  std::uint32_t sequence;
  std::uint32_t id;
  friend bool operator==(const Issue&, const Issue&) = default;
};
struct Reject {  // the next decision: the calls of this name fail with this text
  std::uint32_t generation;
  std::uint32_t sequence;
  std::string name;
  std::string text;
  friend bool operator==(const Reject&, const Reject&) = default;
};
struct ReleaseAll {  // all members have called join(); `last_rank`: the world rank of the last one
  std::uint32_t generation;
  std::uint32_t sequence;
  std::int32_t last_rank;
  friend bool operator==(const ReleaseAll&, const ReleaseAll&) = default;
};
struct Stop {  // members must not enter further steps in this generation, and must report
  std::uint32_t generation;
  friend bool operator==(const Stop&, const Stop&) = default;
};
// Ends a replan: entries up to the common prefix stay, all later entries are rolled back, and the
// group goes on.
struct Answer {
  std::uint32_t generation;
  std::uint32_t common_prefix;  // the last sequence that all have entered with equal identities
  std::uint32_t fragment;       // the group goes on with this fragment; 0: without the plan
  friend bool operator==(const Answer&, const Answer&) = default;
};
// Edits of the plan. The coordinator sends none while the members follow the plan.
struct AddBucket {  // the next bucket of this fragment; makes the fragment if it is new
  std::uint32_t fragment;
  std::vector<std::uint32_t> ids;  // at least one id
  friend bool operator==(const AddBucket&, const AddBucket&) = default;
};
struct DropFragment {  // also removes the fragment's edges, in both directions
  std::uint32_t fragment;
  friend bool operator==(const DropFragment&, const DropFragment&) = default;
};
struct AddEdge {
  std::uint32_t from;  // a fragment
  std::uint32_t to;    // a fragment
  EdgeKind kind;
  friend bool operator==(const AddEdge&, const AddEdge&) = default;
};
struct Follow {  // from here on, the members follow the plan, beginning with this fragment
  std::uint32_t generation;
  std::uint32_t sequence;  // the last decision before the members follow the plan
  std::uint32_t fragment;
  friend bool operator==(const Follow&, const Follow&) = default;
};
using StreamItem = std::variant<Define, Forget, Issue, Reject, ReleaseAll, Stop, Answer, AddBucket,
                                DropFragment, AddEdge, Follow>;

// Packs items into messages. Begins a new message only if the next item does not fit into the last
// message, or is an announcement of another set of members.
class MessagePacker {
 public:
  void add(const MemberSet& from, const Announcement& announcement);
  void add(const StreamItem& item);
  // Returns the oldest full message. If no message is full, returns the message that is being
  // filled.
  std::optional<Bytes> take();
  bool empty() const { return full_messages_.empty() && open_message_.empty(); }

 private:
  void append(const Bytes& head, const Bytes& item);

  std::deque<Bytes> full_messages_;
  Bytes open_message_;
  Bytes open_head_;  // how the open message begins: its kind and, in announcements, the members
};

// Decodes the items of a message, at least one. Errors: kStop, saying what is wrong with the bytes.
Result<Announcements> decode_announcements(std::span<const std::byte> message);
Result<std::vector<StreamItem>> decode_stream(std::span<const std::byte> message);
// With this message, a parent in the tree acknowledges a message of its child.
Bytes acknowledgement();
bool is_acknowledgement(std::span<const std::byte> message);

}  // namespace farandole
