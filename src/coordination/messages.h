// The control messages of a group, as bytes. Followers send announcements, raises and reports to
// the coordinator. The coordinator sends one ordered stream, the same to every member. A message is
// a kind and its items.
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
#include "coordination/submission_context.h"
#include "farandole/status.h"

namespace farandole {

inline constexpr std::size_t kMessageBytesMax = 16384;
// Bounds the text of a rejection, so that it fits into a message together with its name.
inline constexpr std::size_t kRejectionTextBytesMax = 8192;

struct OutgoingMessage {
  int to;       // a member
  Bytes bytes;  // at most kMessageBytesMax
};

// Where one fragment follows another: inside a superstep, or behind a synchronization point.
// Submissions after a quiescent point are behind a synchronization point, so a member that looks
// for the next fragment knows which of the two applies. A set of bits.
enum class Where : std::uint8_t { kSameSuperstep = 1, kNextSuperstep = 2, kAnywhere = 3 };

// Follower → coordinator: "this is ready here".
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
struct AnnounceAgain {  // repeats an announcement whose id was forgotten before the decision
  Signature signature;
  SubmissionContext context;
  friend bool operator==(const AnnounceAgain&, const AnnounceAgain&) = default;
};
struct AnnounceJoin {      // the member has joined: it submits nothing until all are released
  std::uint64_t time = 0;  // when it was submitted, in ns on the monotonic clock that members share
  friend bool operator==(const AnnounceJoin&, const AnnounceJoin&) = default;
};
// Asks for a replan, because what is predicted here differs from what is happening.
struct Raise {
  enum class Cause : std::uint8_t {
    kMisprediction,  // members have entered a step with different identities, or a member joins
    kBucket,         // the plan's next bucket is not ready, but something of its fragment is
    kMissingEdge,    // nothing of the expected fragments is ready, but something of others
  };
  std::uint32_t generation = 1;
  std::uint32_t completed = 0;  // its last completed sequence
  Cause cause = Cause::kMisprediction;
  std::uint32_t fragment = 0;  // the expected or current fragment; 0 if none
  std::uint32_t bucket =
      0;  // index of the bucket in the fragment; the number of buckets means its end
  // kBucket: the ready ids of the bucket and of later buckets of the fragment. kMissingEdge: the
  // fragments of which anything is ready, in the order of submission.
  std::vector<std::uint32_t> ready = {};
  Where where = Where::kAnywhere;  // for kMissingEdge: where we look for the next fragment
  friend bool operator==(const Raise&, const Raise&) = default;
};
struct Report {  // how far a member has come when it was stopped
  std::uint32_t generation;
  std::uint32_t completed;         // last completed sequence
  std::uint8_t entered;            // whether it has entered the next one: 0 or 1
  std::uint64_t identity;          // identity of what it has entered
  std::uint32_t quiescent_points;  // the highest among the submissions of all that it has entered
  std::uint32_t fragments_run;     // how many fragments of the plan it has entered completely
  friend bool operator==(const Report&, const Report&) = default;
};
using Announcement =
    std::variant<AnnounceInFull, AnnounceById, AnnounceAgain, AnnounceJoin, Raise, Report>;

// Coordinator → every member, in the group's order.
struct Define {  // from now on this id stands for this signature
  std::uint32_t id;
  Signature signature;
  friend bool operator==(const Define&, const Define&) = default;
};
struct Forget {  // from now on the id is unused, for good
  std::uint32_t id;
  friend bool operator==(const Forget&, const Forget&) = default;
};
struct Issue {  // the next step
  std::uint32_t generation;
  std::uint32_t sequence;
  std::uint32_t id;
  friend bool operator==(const Issue&, const Issue&) = default;
};
struct Reject {
  std::uint32_t generation;
  std::uint32_t sequence;
  std::string name;
  std::string text;
  friend bool operator==(const Reject&, const Reject&) = default;
};
struct ReleaseAll {  // all members have joined; `last_rank` is the world rank that joined last
  std::uint32_t generation;
  std::uint32_t sequence;
  std::int32_t last_rank;
  friend bool operator==(const ReleaseAll&, const ReleaseAll&) = default;
};
struct Stop {  // members must enter nothing more in this generation, and report
  std::uint32_t generation;
  friend bool operator==(const Stop&, const Stop&) = default;
};
// ends a replan: entries up to the common prefix stay, all others are rolled back, and the group
// goes on
struct Answer {
  std::uint32_t generation;
  std::uint32_t common_prefix;  // last sequence that all have entered alike
  std::uint32_t fragment;       // the plan goes on with this fragment; 0: announce everything
  friend bool operator==(const Answer&, const Answer&) = default;
};
// Edits of the plan. There are none while the plan is followed.
struct AddBucket {  // the next bucket of this fragment; makes the fragment if it is new
  std::uint32_t fragment;
  std::vector<std::uint32_t> ids;  // at least one
  friend bool operator==(const AddBucket&, const AddBucket&) = default;
};
struct DropFragment {  // also removes its edges, from it and to it
  std::uint32_t fragment;
  friend bool operator==(const DropFragment&, const DropFragment&) = default;
};
struct AddEdge {
  std::uint32_t from;  // fragments
  std::uint32_t to;
  Where where;
  friend bool operator==(const AddEdge&, const AddEdge&) = default;
};
struct Follow {  // from here on, follow the plan, beginning with this fragment
  std::uint32_t generation;
  std::uint32_t sequence;  // the last one that was decided
  std::uint32_t fragment;
  friend bool operator==(const Follow&, const Follow&) = default;
};
using StreamItem = std::variant<Define, Forget, Issue, Reject, ReleaseAll, Stop, Answer, AddBucket,
                                DropFragment, AddEdge, Follow>;

// Packs items into messages, each as full as possible.
class MessagePacker {
 public:
  void add(const Announcement& announcement);
  void add(const StreamItem& item);
  // The next message. Closes the one that is being filled if there is no other.
  std::optional<Bytes> take();
  bool empty() const { return full_.empty() && open_.empty(); }

 private:
  void append(std::uint8_t kind, Bytes item);

  std::deque<Bytes> full_;
  Bytes open_;
};

// Decodes the items of a message, at least one. Errors: kStop, saying what is wrong with the bytes.
Result<std::vector<Announcement>> decode_announcements(std::span<const std::byte> message);
Result<std::vector<StreamItem>> decode_stream(std::span<const std::byte> message);

}  // namespace farandole
