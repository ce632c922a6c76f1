// The names under which members of a job find each other in the Store, and the bytes of what they
// put there. `epoch` counts the formations of one job: it is the same number on every rank as long
// as all of them call init equally often.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "farandole/status.h"

namespace farandole::keys {

inline std::string in_epoch(std::int64_t epoch, const std::string& rest) {
  return "epoch/" + std::to_string(epoch) + "/" + rest;
}

// Counter per rank: how often it has begun to form. Its new value is the epoch.
inline std::string formations(int rank) { return "formations/" + std::to_string(rank); }
// A MemberRecord; with it come the pidfd and the first segment of the heap.
inline std::string member(std::int64_t epoch, int rank) {
  return in_epoch(epoch, "member/" + std::to_string(rank));
}
// Text: see job_name.h.
inline std::string job_name() { return "job_name"; }
// Rank 0's segment with the doorbells. No bytes.
inline std::string doorbells(std::int64_t epoch) { return in_epoch(epoch, "doorbells"); }
// The segment of a group, from its first member. No bytes.
inline std::string group(std::int64_t epoch, std::uint32_t id) {
  return in_epoch(epoch, "group/" + std::to_string(id));
}
// Counter: ranks that have mapped everything.
inline std::string attached(std::int64_t epoch) { return in_epoch(epoch, "attached"); }
// Text: empty when all are attached, else why the formation failed.
inline std::string complete(std::int64_t epoch) { return in_epoch(epoch, "complete"); }
// Counter: ranks that have read `complete`; the last one removes the epoch's keys.
inline std::string departed(std::int64_t epoch) { return in_epoch(epoch, "departed"); }

// What every member says of itself, to be compared with what the others say.
struct MemberRecord {
  std::string failure;  // not empty: this rank cannot take part, and why
  std::int64_t pid = 0;
  std::int32_t size = 1;
  std::uint64_t bucket_bytes = 0;
  std::uint64_t check_parameters = 0;
  std::vector<std::vector<int>> groups;

  Bytes encode() const;
  static Result<MemberRecord> decode(std::span<const std::byte> bytes);
};

}  // namespace farandole::keys
