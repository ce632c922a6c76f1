// The keys in the Store and in the LocalStore by which the members of a job find each other, and
// the format of their values. All keys have different names, so one Store may serve as both.
// `epoch` counts the formations of the job. It is the same on all ranks if all ranks call init
// equally often.
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

// Returns the value of a key that holds a text.
inline Bytes text_value(std::string_view text) {
  ByteWriter writer;
  writer.put_text(text);
  return writer.take();
}

// The prefix of the keys of an engine that shares the Store with other engines.
inline constexpr const char* kEnginePrefix = "engine/";
inline std::string engine_prefix(const std::string& rendezvous_id) {
  return kEnginePrefix + rendezvous_id + "/";
}

// The prefix of the keys in which an engine's ranks report what they do. When a server of the Store
// ends, it waits until the keys of formations are removed, but not for these keys.
inline std::string reports_prefix(const std::string& rendezvous_id) {
  return "reports/" + rendezvous_id + "/";
}

inline std::string epoch_key(std::int64_t epoch, const std::string& name) {
  return "epoch/" + std::to_string(epoch) + "/" + name;
}

// A ProcessRecord of the process that has this rank. When the process has ended, another process of
// its host may take the rank.
inline std::string process(int rank) { return "process/" + std::to_string(rank); }
// A text that is equal for ranks that can share a LocalStore. The key is used only in jobs over
// several hosts that a launcher other than `farandole run` has started.
inline std::string place(int rank) { return "place/" + std::to_string(rank); }
// A counter for each rank: the number of formations that the rank has begun. Its new value is the
// epoch.
inline std::string formations(int rank) { return "formations/" + std::to_string(rank); }
// The number of seconds (i64) after which the launcher warns about a stall; 0: never. Rank 0 sets
// the key in each formation, because the program may choose the number until it calls init().
inline std::string stall_warning() { return "stall_warning"; }
// A MemberRecord.
inline std::string member(std::int64_t epoch, int rank) {
  return epoch_key(epoch, "member/" + std::to_string(rank));
}
// Exists while only the rank that serves the Store is connected to it. The key is used only in a
// Store that a rank serves to the ranks of all hosts. The value is empty.
inline std::string others_have_left() { return "others_have_left"; }
// A text: the name of the job; see job_name.h.
inline std::string job_name() { return "job_name"; }
// A number: the time from which the timelines count, in nanoseconds of the clock of the host that
// keeps the Store. In an elastic job, it is the time of the first group; in another job on several
// hosts, it is the time when the first timeline was started.
inline std::string timeline_zero() { return "timeline_zero"; }
// The report of a rank for warnings about stalls: a number that grows with each report (u64), and a
// worker report (diagnosis/worker_report.h).
inline std::string report(std::int64_t epoch, int rank) {
  return epoch_key(epoch, "report/" + std::to_string(rank));
}
// Exists while rank 0 reads the reports. The value is empty.
inline std::string reports_wanted(std::int64_t epoch) { return epoch_key(epoch, "wanted"); }
// A counter: how many ranks have mapped all segments.
inline std::string attached(std::int64_t epoch) { return epoch_key(epoch, "attached"); }
// A text: empty if all ranks have mapped all segments, otherwise the reason why the formation
// failed. The key also ends the waits for member records. A rank that fails also sets the key in
// the LocalStore. There, the key ends the waits for memory and is never removed.
inline std::string complete(std::int64_t epoch) { return epoch_key(epoch, "complete"); }
// A counter: how many ranks have read `complete`. The last of them removes the keys of the epoch.
inline std::string departed(std::int64_t epoch) { return epoch_key(epoch, "departed"); }

// The following keys are only in the Store of the launcher of an elastic job. `worker` is the
// number of a worker process. Each number is used only once.

// The id of the formation of one epoch of the job, and the prefix of its keys.
inline std::string epoch_id(std::int64_t epoch) { return "epoch/" + std::to_string(epoch); }
inline std::string epoch_prefix(std::int64_t epoch) { return engine_prefix(epoch_id(epoch)); }
// The prefix that all keys of this kind of one worker have.
inline std::string worker_key_prefix(const char* kind, int worker) {
  return kind + std::to_string(worker) + "/";
}
// A worker asks for a rank in the next epoch, with a RankRequest. The launcher removes the key.
inline std::string rank_wanted(int worker) { return "rank_wanted/" + std::to_string(worker); }
// The launcher's answer to a RankRequest: a RankRecord. `left_epoch` comes from the request. The
// worker removes the key.
inline constexpr const char* kRankGiven = "rank_given/";
inline std::string rank_given(int worker, std::int64_t left_epoch) {
  return worker_key_prefix(kRankGiven, worker) + std::to_string(left_epoch);
}
// With the prefix of an epoch: exists if the launcher wants to change the members. All members
// should then ask for a rank in the next epoch. The value is empty.
inline std::string change_announced() { return "change_announced"; }
// With the prefix of an epoch: exists if a member of the epoch has ended or has left the epoch. So
// members that still form the group need not wait for this member. The value is empty.
inline std::string member_is_gone() { return "member_is_gone"; }

// The following keys are only in the LocalStore. When a rank leaves the formation, it removes the
// keys that it has set in the LocalStore.

// A random text by which ranks recognize that they use the same LocalStore. Every LocalStore has
// this key from the start.
inline std::string host_token() { return "host_token"; }
// The descriptors of a rank's process (pidfd) and of the segment of its heap. The value has no
// bytes.
inline std::string memory(std::int64_t epoch, int rank) {
  return epoch_key(epoch, "memory/" + std::to_string(rank));
}
// The descriptor of the segment with the doorbells and the memory of the mailboxes. The lowest rank
// of the host sets it. The value has no bytes.
inline std::string doorbells(std::int64_t epoch) { return epoch_key(epoch, "doorbells"); }
// The descriptor of a group's segment. The group's first member on the host sets it. The value has
// no bytes.
inline std::string group(std::int64_t epoch, std::uint32_t id) {
  return epoch_key(epoch, "group/" + std::to_string(id));
}

// The process that has a rank.
struct ProcessRecord {
  std::int64_t pid = 0;
  std::string host_token;  // the pid is valid on this host only
  std::string host_name;

  Bytes encode() const;
  static Result<ProcessRecord> decode(std::span<const std::byte> bytes);
};

// The request of a worker of an elastic job for a rank.
struct RankRequest {
  std::int64_t left_epoch = 0;   // the last epoch of the worker; 0: none
  std::int64_t state_epoch = 0;  // the epoch in which the worker got the training state; 0: not yet
  bool knows_state = false;      // whether the worker's last RankRecord had `has_state`

  Bytes encode() const;
  static Result<RankRequest> decode(std::span<const std::byte> bytes);
};

// The rank of a worker of an elastic job in an epoch.
struct RankRecord {
  std::int64_t epoch = 0;
  std::int32_t rank = 0;
  std::int32_t size = 1;
  bool has_state = false;  // whether any worker of the job has ever had the training state

  Bytes encode() const;
  static Result<RankRecord> decode(std::span<const std::byte> bytes);
};

// The facts that every member publishes about itself. The other members compare the size, settings
// and groups with their own.
struct MemberRecord {
  std::int64_t pid = 0;
  std::string host_token;
  std::string host_name;               // for messages to the user
  std::vector<std::string> addresses;  // the addresses at which other hosts reach the member
  std::string cores{};                 // the hardware threads that the member may use ("0-3")
  std::int32_t size = 1;
  std::map<std::string, std::string> settings;  // Knobs::same_on_all_ranks()
  std::vector<std::vector<int>> groups;

  Bytes encode() const;
  static Result<MemberRecord> decode(std::span<const std::byte> bytes);
};

}  // namespace farandole::keys
