// The keys under which the members of a job find each other in the Store and in the LocalStore, and
// the bytes of the values. No two keys have the same name, so both Stores may be the same. `epoch`
// counts how often the job has formed: it is the same number on every rank as long as all ranks
// call init equally often.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "farandole/status.h"

namespace farandole::keys {

// The epoch of the first formation. A Store or a prefix that serves only one formation has only
// this epoch.
inline constexpr std::int64_t kFirstEpoch = 1;

// The value of a key that has a text.
inline Bytes text_value(std::string_view text) {
  ByteWriter writer;
  writer.put_text(text);
  return writer.take();
}

// Begins the keys of an engine that shares the Store with other engines.
inline constexpr const char* kEnginePrefix = "engine/";
inline std::string engine_prefix(const std::string& rendezvous_id) {
  return kEnginePrefix + rendezvous_id + "/";
}

// Begins the keys in which an engine's ranks report what they do. When a server of the Store ends,
// it waits for the keys of a formation to be removed, but not for these keys.
inline std::string reports_prefix(const std::string& rendezvous_id) {
  return "reports/" + rendezvous_id + "/";
}

inline std::string in_epoch(std::int64_t epoch, const std::string& rest) {
  return "epoch/" + std::to_string(epoch) + "/" + rest;
}

// A ProcessRecord of the process that has this rank. When that process has ended, another process
// of its host may take the rank.
inline std::string process(int rank) { return "process/" + std::to_string(rank); }
// A text that is the same for ranks that can share a LocalStore. Only in jobs over several hosts
// that another launcher has started.
inline std::string place(int rank) { return "place/" + std::to_string(rank); }
// A counter for each rank: how often the rank has begun to form the job. The new value of the
// counter is the epoch.
inline std::string formations(int rank) { return "formations/" + std::to_string(rank); }
// After how many seconds (i64) the launcher warns about a stall; 0 for never. Rank 0 sets it in
// each formation, because a program may choose the time between its start and init().
inline std::string stall_warning() { return "stall_warning"; }
// A MemberRecord.
inline std::string member(std::int64_t epoch, int rank) {
  return in_epoch(epoch, "member/" + std::to_string(rank));
}
// Only in a Store that a rank serves to the ranks of all hosts: exists while no other rank is
// connected. The value has no bytes.
inline std::string others_have_left() { return "others_have_left"; }
// A text; see job_name.h.
inline std::string job_name() { return "job_name"; }
// A number: the time from which the timelines count, in nanoseconds of the clock of the host that
// keeps the Store. In an elastic job, it is the time of the first group; in another job on several
// hosts, it is the time when the first timeline was started.
inline std::string timeline_zero() { return "timeline_zero"; }
// What a rank does, for warnings about stalls: a number that grows with each report (u64), and a
// worker report (diagnosis/worker_report.h).
inline std::string report(std::int64_t epoch, int rank) {
  return in_epoch(epoch, "report/" + std::to_string(rank));
}
// A key that exists while rank 0 reads the reports. The value has no bytes.
inline std::string reports_wanted(std::int64_t epoch) { return in_epoch(epoch, "wanted"); }
// A counter: how many ranks have mapped all segments.
inline std::string attached(std::int64_t epoch) { return in_epoch(epoch, "attached"); }
// A text: empty if all ranks have mapped all segments, otherwise why the formation failed. The key
// also ends the waits for members. A rank that fails also sets it in the LocalStore, where it ends
// the waits for memory and is not removed.
inline std::string complete(std::int64_t epoch) { return in_epoch(epoch, "complete"); }
// A counter: how many ranks have read `complete`. The last of them removes the keys of the epoch.
inline std::string departed(std::int64_t epoch) { return in_epoch(epoch, "departed"); }

// The following keys are only in the Store of the launcher of an elastic job. `worker` is the
// number of a process, which no later process gets.

// The id of the formation of one epoch of the job, and the prefix of its keys.
inline std::string epoch_id(std::int64_t epoch) { return "epoch/" + std::to_string(epoch); }
inline std::string epoch_prefix(std::int64_t epoch) { return engine_prefix(epoch_id(epoch)); }
// Begins the keys of one kind of one worker.
inline std::string of_worker(const char* kind, int worker) {
  return kind + std::to_string(worker) + "/";
}
// A worker asks for a rank in the next epoch, with a RankRequest. The launcher removes it.
inline std::string rank_wanted(int worker) { return "rank_wanted/" + std::to_string(worker); }
// The launcher's answer, a RankRecord. `left` is that of the request. The worker removes it.
inline constexpr const char* kRankGiven = "rank_given/";
inline std::string rank_given(int worker, std::int64_t left) {
  return of_worker(kRankGiven, worker) + std::to_string(left);
}
// With the prefix of an epoch: exists when the launcher wants to change the members, so that
// all should ask for a rank in the next epoch. The value has no bytes.
inline std::string change_announced() { return "change_announced"; }
// With the prefix of an epoch: exists when a member of the epoch has ended or left it. So members
// that still connect to each other need not wait for it. The value has no bytes.
inline std::string member_is_gone() { return "member_is_gone"; }

// The following keys are only in the LocalStore. The rank that sets one removes it when it departs.

// A random text, by which ranks recognize that they use the same LocalStore. Every LocalStore has
// it from the start.
inline std::string host_token() { return "host_token"; }
// The descriptors of a rank's process (pidfd) and of its heap's segment. The value has no bytes.
inline std::string memory(std::int64_t epoch, int rank) {
  return in_epoch(epoch, "memory/" + std::to_string(rank));
}
// The descriptor of the segment with the doorbells and the memory of the mailboxes. The lowest rank
// of the host sets it. The value has no bytes.
inline std::string doorbells(std::int64_t epoch) { return in_epoch(epoch, "doorbells"); }
// The descriptor of a group's segment. The group's first member on the host sets it. The value has
// no bytes.
inline std::string group(std::int64_t epoch, std::uint32_t id) {
  return in_epoch(epoch, "group/" + std::to_string(id));
}

// Which process has a rank.
struct ProcessRecord {
  std::int64_t pid = 0;
  std::string host_token;  // the pid is valid on this host only
  std::string host_name;

  Bytes encode() const;
  static Result<ProcessRecord> decode(std::span<const std::byte> bytes);
};

// What a worker of an elastic job says when it asks for a rank.
struct RankRequest {
  std::int64_t left = 0;         // the epoch that it has left; 0: none
  std::int64_t state_epoch = 0;  // in which it got the state of the training; 0: not yet
  bool knows_state = false;      // as its last RankRecord has said, somebody had the state

  Bytes encode() const;
  static Result<RankRequest> decode(std::span<const std::byte> bytes);
};

// Which rank a worker of an elastic job has in an epoch.
struct RankRecord {
  std::int64_t epoch = 0;
  std::int32_t rank = 0;
  std::int32_t size = 1;
  bool has_state = false;  // a worker had the state of the training by then

  Bytes encode() const;
  static Result<RankRecord> decode(std::span<const std::byte> bytes);
};

// What every member publishes about itself. The other members compare their own size, settings and
// groups with these.
struct MemberRecord {
  std::int64_t pid = 0;
  std::string host_token;
  std::string host_name;               // for messages to the user
  std::vector<std::string> addresses;  // where other hosts reach the member
  std::string cores{};                 // the hardware threads that it may use, such as "0-3"
  std::int32_t size = 1;
  std::map<std::string, std::string> settings;  // Knobs::same_on_all_ranks()
  std::vector<std::vector<int>> groups;

  Bytes encode() const;
  static Result<MemberRecord> decode(std::span<const std::byte> bytes);
};

}  // namespace farandole::keys
