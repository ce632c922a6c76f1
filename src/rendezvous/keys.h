// The keys under which the members of a job find each other in the Store, and the bytes of the
// values. `epoch` counts how often the job has formed: it is the same number on every rank as long
// as all ranks call init equally often.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "farandole/status.h"

namespace farandole::keys {

inline std::string in_epoch(std::int64_t epoch, const std::string& rest) {
  return "epoch/" + std::to_string(epoch) + "/" + rest;
}

// The pid (i64) of the process that has this rank. When that process has ended, another process may
// take the rank.
inline std::string process(int rank) { return "process/" + std::to_string(rank); }
// A counter for each rank: how often the rank has begun to form the job. The new value of the
// counter is the epoch.
inline std::string formations(int rank) { return "formations/" + std::to_string(rank); }
// After how many seconds (i64) the launcher warns about a stall; 0 for never. Rank 0 sets it in
// each formation, because a program may choose the time between its start and init().
inline std::string stall_warning() { return "stall_warning"; }
// A MemberRecord, together with descriptors of the process (pidfd) and of its heap's segment.
inline std::string member(std::int64_t epoch, int rank) {
  return in_epoch(epoch, "member/" + std::to_string(rank));
}
// A text; see job_name.h.
inline std::string job_name() { return "job_name"; }
// The descriptor of the segment with the doorbells and the memory of the mailboxes. Rank 0 sets it.
// The value has no bytes.
inline std::string doorbells(std::int64_t epoch) { return in_epoch(epoch, "doorbells"); }
// The descriptor of a group's segment. The group's first member sets it. The value has no bytes.
inline std::string group(std::int64_t epoch, std::uint32_t id) {
  return in_epoch(epoch, "group/" + std::to_string(id));
}
// A counter: how many ranks have mapped all segments.
inline std::string attached(std::int64_t epoch) { return in_epoch(epoch, "attached"); }
// A text: empty if all ranks have mapped all segments, otherwise why the formation failed. The key
// also ends the waits for members.
inline std::string complete(std::int64_t epoch) { return in_epoch(epoch, "complete"); }
// A counter: how many ranks have read `complete`. The last of them removes the keys of the epoch.
inline std::string departed(std::int64_t epoch) { return in_epoch(epoch, "departed"); }

// What every member publishes about itself, so that the others can compare it.
struct MemberRecord {
  std::int64_t pid = 0;
  std::int32_t size = 1;
  std::map<std::string, std::string> settings;  // Knobs::same_on_all_ranks()
  std::vector<std::vector<int>> groups;

  Bytes encode() const;
  static Result<MemberRecord> decode(std::span<const std::byte> bytes);
};

}  // namespace farandole::keys
