// SubmissionTable: every submission from submit to take, by handle; which names are in flight, and
// the automatic names. What a training does again and again costs one hash of the name and a
// comparison, and no allocation: records, and what is known of each name, are kept for the next
// time. A plain container: the engine guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "coordination/signature.h"
#include "farandole/engine.h"

namespace farandole {

// How many names that are not in flight are remembered, about.
inline constexpr std::size_t kIdleNamesMax = 16384;
// How many records are kept for later submissions.
inline constexpr std::size_t kIdleRecordsMax = 4096;

// What is known of a name in a group, from the last submission that had it.
struct KnownName {
  explicit KnownName(Signature signature);

  const std::string name;
  KnownSignature known;
  bool in_flight = false;
};

// One submission. While it is in flight the holder of the baton alone writes `outcome`.
struct Record {
  Handle handle = 0;
  Submission submission;
  KnownName* name = nullptr;           // while it is in flight; its signature is this one's
  std::optional<int> automatic_index;  // when the engine chose the name
  TimePoint submitted{};
  Outcome outcome;
  bool finished = false;
  bool dropped = false;
};

class SubmissionTable {
 public:
  // Gives it a handle, one more than the last, and, if it has none, a name. Errors: kFixCall when
  // the name is in flight, or this rank has joined the group. When std::bad_alloc comes out nothing
  // has changed.
  Result<Record*> add(const Submission& submission);
  // Takes back what add() has just given; nobody has seen it yet.
  void withdraw(Record& record);
  Record* find(Handle handle);  // null when unknown

  // The record's outcome is written: its name may be used again. A dropped one is forgotten.
  void finish(Record& record);
  // Forgets a finished record.
  Outcome remove(Handle handle);
  // Forgets it now or when it is finished, but not the index of its automatic name.
  void drop(Handle handle);

  std::size_t in_flight() const { return in_flight_; }
  std::size_t in_flight(GroupId group) const;
  // The one that was submitted first of those in flight that do not wait for a join; may be null.
  Record* oldest();

 private:
  using RecordPointer = std::unique_ptr<Record>;
  struct NameKey {
    GroupId group;
    std::string_view name;  // that of the value, or of whom we look for

    friend bool operator==(const NameKey&, const NameKey&) = default;
  };
  struct NameHash {
    std::size_t operator()(const NameKey& key) const {
      return std::hash<std::string_view>()(key.name) + key.group;
    }
  };
  // Indices of automatic names, in use until the handle is taken: a point of the program, not of
  // time, so that all ranks choose alike. Those of dropped calls never come back.
  struct Indices {
    int next = 0;                 // the first that was never used
    std::vector<int> given_back;  // a heap, the lowest first; has room for all
  };

  RecordPointer& place_of(Handle handle) { return recent_[handle & (recent_.size() - 1)]; }
  void make_room(Handle handle);
  void double_places();
  RecordPointer blank_record();
  Status fill(Record& record);
  KnownName& known_name(const Record& record);
  void forget_idle_names();
  int take_index(const Submission& submission);
  void give_index_back(const Record& record);
  void forget(Handle handle);
  template <class Visit>
  void for_each(Visit visit) const;

  // A handle's place follows from it: handles are counted, and most live shortly. Who is still
  // there when another one needs the place moves to `old_`, unless half of all places are taken.
  std::vector<RecordPointer> recent_;
  std::unordered_map<Handle, RecordPointer> old_;
  std::vector<RecordPointer> blank_;  // never grows when a record is given back
  std::size_t kept_ = 0;              // records in `recent_` and `old_`
  std::size_t in_flight_ = 0;
  std::unordered_map<NameKey, std::unique_ptr<KnownName>, NameHash> names_;
  Signature asked_;  // of the submission that is being added; kept to save the allocations
  std::map<std::pair<GroupId, Operation>, Indices> automatic_indices_;
  std::set<GroupId> joined_;  // groups with a join of ours in flight
  Handle last_handle_ = 0;
};

}  // namespace farandole
