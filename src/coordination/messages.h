// The control messages of a group, as bytes. Followers send announcements, raises and reports to
// the coordinator; the coordinator sends one ordered stream, the same to every member. A message is
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
#include "coordination/moment.h"
#include "farandole/status.h"

namespace farandole {

inline constexpr std::size_t kMessageBytesMax = 16384;
// Of a refusal, so that it fits into a message together with its name.
inline constexpr std::size_t kRefusalTextBytesMax = 8192;

// How many numbers a list in an item has at most.
inline constexpr std::size_t kListMax = 1024;

struct OutgoingMessage {
  int to;       // member
  Bytes bytes;  // at most kMessageBytesMax
};

// Where one atom follows another: in one segment, or behind a border. What a user submits after a
// quiet point is behind it; so who looks for the next atom knows which of both it is. A set of
// bits.
enum class Where : std::uint8_t { kInside = 1, kBehindBorder = 2, kAnywhere = 3 };

// Follower → coordinator: "this is ready here".
struct AnnounceInFull {
  Signature signature;
  Moment moment;
  friend bool operator==(const AnnounceInFull&, const AnnounceInFull&) = default;
};
struct AnnounceById {
  std::uint32_t id;
  Moment moment;
  friend bool operator==(const AnnounceById&, const AnnounceById&) = default;
};
struct AnnounceAgain {  // what was announced by an id that has been forgotten before the decision
  Signature signature;
  Moment moment;
  friend bool operator==(const AnnounceAgain&, const AnnounceAgain&) = default;
};
struct AnnounceJoin {      // nothing new comes from here until all are released
  std::uint64_t time = 0;  // when it was submitted, in ns on the monotonic clock that members share
  friend bool operator==(const AnnounceJoin&, const AnnounceJoin&) = default;
};
// "What we predict and what is happening do not go together."
struct Raise {
  enum class Cause : std::uint8_t {
    kSurprise,    // all have entered a turn, and not alike; or somebody joins
    kBucket,      // of the next bucket of the plan only a part is ready, and it goes no further
    kSuccession,  // nothing of what is expected is ready, but something of other atoms
  };
  std::uint32_t generation = 1;
  std::uint32_t completed = 0;  // sequence
  Cause cause = Cause::kSurprise;
  std::uint32_t atom = 0;    // which is expected, or in which we are; 0 if none
  std::uint32_t bucket = 0;  // of the atom, counted from 0; as many as there are: at its end
  // kBucket: the ids that are ready of it; if none is, of what comes after it in the atom.
  // kSuccession: the atoms of which something is ready, in the order of submission.
  std::vector<std::uint32_t> ready = {};
  Where where = Where::kAnywhere;  // of kSuccession: we look for what follows there
  friend bool operator==(const Raise&, const Raise&) = default;
};
struct Report {  // "we have stopped here"
  std::uint32_t generation;
  std::uint32_t completed;     // sequence
  std::uint8_t entered;        // after that: 0 or 1
  std::uint64_t identity;      // of what was entered
  std::uint32_t quiet_points;  // when we submitted the last of all that
  std::uint32_t atoms_run;     // how many atoms of the plan we have entered to their end
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
struct Forget {  // the id stands for nothing any more, and never will again
  std::uint32_t id;
  friend bool operator==(const Forget&, const Forget&) = default;
};
struct Issue {  // the next step
  std::uint32_t generation;
  std::uint32_t sequence;
  std::uint32_t id;
  friend bool operator==(const Issue&, const Issue&) = default;
};
struct Refuse {
  std::uint32_t generation;
  std::uint32_t sequence;
  std::string name;
  std::string text;
  friend bool operator==(const Refuse&, const Refuse&) = default;
};
struct ReleaseAll {  // all have joined, this rank of the world as the last
  std::uint32_t generation;
  std::uint32_t sequence;
  std::int32_t last_rank;
  friend bool operator==(const ReleaseAll&, const ReleaseAll&) = default;
};
struct Stop {  // enter nothing more in this generation, and report
  std::uint32_t generation;
  friend bool operator==(const Stop&, const Stop&) = default;
};
struct Answer {  // what was entered up to the prefix stays, all else is withdrawn; go on from there
  std::uint32_t generation;
  std::uint32_t prefix;  // sequence
  std::uint32_t atom;    // with the plan, at the beginning of this one; 0: announce everything
  friend bool operator==(const Answer&, const Answer&) = default;
};
// What is planned. While the plan is followed, it stays as it is.
struct AddBucket {  // the next one of this atom, or the first one of a new one
  std::uint32_t atom;
  std::vector<std::uint32_t> ids;  // at least one
  friend bool operator==(const AddBucket&, const AddBucket&) = default;
};
struct DropAtom {  // and all that it follows and that follows it
  std::uint32_t atom;
  friend bool operator==(const DropAtom&, const DropAtom&) = default;
};
struct AddSuccession {
  std::uint32_t from;  // atoms
  std::uint32_t to;
  Where where;
  friend bool operator==(const AddSuccession&, const AddSuccession&) = default;
};
struct Follow {  // from here on the plan, beginning with this atom
  std::uint32_t generation;
  std::uint32_t sequence;  // of the last one that was decided
  std::uint32_t atom;
  friend bool operator==(const Follow&, const Follow&) = default;
};
using StreamItem = std::variant<Define, Forget, Issue, Refuse, ReleaseAll, Stop, Answer, AddBucket,
                                DropAtom, AddSuccession, Follow>;

// Fills messages with items, each as full as it may be.
class MessagePacker {
 public:
  void add(const Announcement& announcement);
  void add(const StreamItem& item);
  // The next message; closes the one that is being filled when it is the only one.
  std::optional<Bytes> take();
  bool empty() const { return full_.empty() && open_.empty(); }

 private:
  void append(std::uint8_t kind, Bytes item);

  std::deque<Bytes> full_;
  Bytes open_;
};

// The items of a message, at least one. Errors: kStop saying what is wrong with the bytes.
Result<std::vector<Announcement>> decode_announcements(std::span<const std::byte> message);
Result<std::vector<StreamItem>> decode_stream(std::span<const std::byte> message);

}  // namespace farandole
