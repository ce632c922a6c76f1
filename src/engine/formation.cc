#include "engine/formation.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "base/allocation.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/descriptor_limit.h"
#include "base/format.h"
#include "base/knobs.h"
#include "base/process_end.h"
#include "base/try.h"
#include "collective/group.h"
#include "collective/group_memory.h"
#include "engine/process_context.h"
#include "mailbox/mailbox.h"
#include "rendezvous/keys.h"
#include "transport/shm/heap_size.h"

namespace farandole {
namespace {

// "[[0, 1], [1, 2]]"
std::string groups_text(const std::vector<std::vector<int>>& groups) {
  std::vector<std::string> texts;
  for (const auto& ranks : groups) texts.push_back(group_text(ranks));
  return format_text("[{}]", join_text(texts, ", "));
}

constexpr std::chrono::milliseconds kStartTimeoutMax = std::chrono::hours(24 * 365);

// The size of the segment that all ranks share: the doorbells and the memory of the mailboxes.
std::size_t bytes_for_all(int size) {
  return Doorbells::bytes_needed(size) + Mailbox::bytes_needed(size);
}

// How many descriptors a rank may have open at once: its own heap, a pidfd of every process, two
// for the watch and, for a short time, the heaps of all ranks and a segment with its duplicate.
// Adding a group later also opens a segment and its duplicate.
int descriptors_needed(int size) { return 2 * size + 5; }

Result<Descriptor> open_own_process() {
  auto process =
      Descriptor::beyond_standard(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!process.valid())
    return Status::stop(format_text(
        "cannot open a descriptor of this process (pidfd_open: {}); Linux 5.3 or newer is needed, "
        "and room for two descriptors per worker ({})",
        std::strerror(errno), descriptor_advice()));
  return process;
}

bool has_process_ended(pid_t pid) {
  const Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  return process.valid() ? has_ended(process) : errno == ESRCH;
}

Result<Descriptor> duplicate(const Descriptor& descriptor) {
  Descriptor copy(::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!copy.valid()) return Status::stop("cannot duplicate a descriptor: " + descriptor_advice());
  return copy;
}

Status publish_segment(LocalStore& store, const std::string& key, const Segment& segment) {
  LocalValue value;
  FARANDOLE_TRY_ASSIGN(auto descriptor, duplicate(segment.descriptor()));
  value.descriptors.push_back(std::move(descriptor));
  return store.share(key, std::move(value));
}

// Returns the ranks of each group, by GroupId. Errors: kFixCall for a list that is not ascending,
// not inside the job, empty or given twice, and for too many groups.
Result<std::vector<std::vector<int>>> all_groups(const EngineOptions& options) {
  std::vector<std::vector<int>> groups(1);
  for (int rank = 0; rank < options.topology.size; ++rank) groups[0].push_back(rank);
  for (const auto& ranks : options.groups) {
    FARANDOLE_TRY(check_group(ranks, options.topology.size));
    if (std::find(groups.begin(), groups.end(), ranks) != groups.end())
      return Status::fix_call(format_text(
          "the group {} is given twice (the world counts as given); name each group once",
          group_text(ranks)));
    groups.push_back(ranks);
  }
  if (groups.size() > kGroupsMax)
    return Status::fix_call(format_text("{} groups are too many; at most {} are possible",
                                        options.groups.size(), kGroupsMax - 1));
  return groups;
}

// The steps of one formation, in the order in which form() calls them.
class FormationProtocol {
 public:
  FormationProtocol(const EngineOptions& options, LocalStore& store)
      : options_(options),
        store_(store),
        limit_{std::chrono::steady_clock::now() + std::min(options.start_timeout, kStartTimeoutMax),
               options.interrupted} {}

  // Returns the number of this formation, the same on all ranks.
  Result<std::int64_t> begin() {
    FARANDOLE_TRY(reserve_rank());
    if (rank() == 0) FARANDOLE_TRY(publish_stall_warning());
    FARANDOLE_TRY_ASSIGN(epoch_, store_.add(keys::formations(rank()), 1));
    return epoch_;
  }

  Status check_limits() const {
    return check_descriptors(format_text("rank {}", rank()), descriptors_needed(size()));
  }

  Status choose_groups(Formation& formation) {
    FARANDOLE_TRY_ASSIGN(groups_, all_groups(options_));
    formation.ranks_of = groups_;
    return {};
  }

  // Publishes the memory before the member record: if a rank finds the record, the memory is there.
  Status publish(Formation& formation) {
    formation.costs = costs_on(options_.topology.local_size, usable_cores());
    formation.bucket_bytes = options_.bucket_bytes;
    const std::size_t bytes = options_.heap_bytes == 0
                                  ? heap_bytes(heap_limits(), options_.topology.local_size)
                                  : options_.heap_bytes;
    FARANDOLE_TRY_ASSIGN(formation.heap, options_.context->heap(bytes));
    if (rank() == 0) FARANDOLE_TRY(publish_doorbells());
    for (GroupId id = 0; id < groups_.size(); ++id) {
      if (groups_[id].front() != rank()) continue;
      const int members = static_cast<int>(groups_[id].size());
      FARANDOLE_TRY(publish_group(store_, keys::group(epoch_, id), members, formation.costs));
    }
    LocalValue value;
    value.bytes = keys::MemberRecord{::getpid(), size(), settings_, options_.groups}.encode();
    FARANDOLE_TRY_ASSIGN(auto process, open_own_process());
    FARANDOLE_TRY_ASSIGN(auto heap, duplicate(formation.heap->descriptor()));
    value.descriptors.push_back(std::move(process));
    value.descriptors.push_back(std::move(heap));
    return store_.share(keys::member(epoch_, rank()), std::move(value));
  }

  Status publish_doorbells() {
    FARANDOLE_TRY_ASSIGN(const auto segment,
                         Segment::create("farandole-doorbells", bytes_for_all(size())));
    return publish_segment(store_, keys::doorbells(epoch_), *segment);
  }

  Status attach(Formation& formation) {
    FARANDOLE_TRY(attach_peers(formation.peers));
    FARANDOLE_TRY_ASSIGN(formation.doorbells_segment,
                         attach_segment(keys::doorbells(epoch_), bytes_for_all(size())));
    formation.doorbells =
        std::make_unique<Doorbells>(formation.doorbells_segment->data(), rank(), size());
    formation.mailbox_memory =
        formation.doorbells_segment->data() + Doorbells::bytes_needed(size());
    for (GroupId id = 0; id < groups_.size(); ++id) {
      if (!std::binary_search(groups_[id].begin(), groups_[id].end(), rank())) continue;
      const auto bytes = GroupMemory::bytes_needed(static_cast<int>(groups_[id].size()));
      FARANDOLE_TRY_ASSIGN(auto segment, attach_segment(keys::group(epoch_, id), bytes));
      formation.groups.push_back({id, groups_[id], std::move(segment)});
    }
    return {};
  }

  // Returns ok when all ranks have attached everything, otherwise the error of the first rank that
  // failed.
  Status complete() {
    FARANDOLE_TRY_ASSIGN(const std::int64_t attached, store_.add(keys::attached(epoch_), 1));
    if (attached == size()) announce_result("");
    auto verdict = store_.wait(keys::complete(epoch_), limit_);
    if (verdict.ok()) return read_result(*verdict);
    const Status own = timeout_error("the other ranks to map the shared memory", verdict.status());
    // The others must know that this rank gives up. But if the formation was completed meanwhile,
    // this rank is part of the job.
    announce_result(failure_text(own));
    verdict = store_.wait(keys::complete(epoch_), {TimePoint{}, no_interruption_});
    const Status end = verdict.ok() ? read_result(*verdict) : own;
    return end.ok() ? end : own;
  }

  // Tells the others why this rank cannot take part, so that they need not wait for the time-out.
  void announce_failure(const Status& status) { announce_result(failure_text(status)); }

  // Every rank calls this in the end; the last one removes the keys. If the Store fails, some keys
  // remain.
  void depart(bool formed) {
    const auto departed = store_.add(keys::departed(epoch_), 1);
    if (!departed.ok() || *departed != size()) return;
    // In a failed formation, other ranks may have published groups that this rank does not know.
    (void)remove_keys(formed ? groups_.size() : kGroupsMax);
  }

 private:
  int rank() const { return options_.topology.rank; }
  int size() const { return options_.topology.size; }

  Status publish_pid() {
    ByteWriter writer;
    writer.put(std::int64_t{::getpid()});
    return store_.set(keys::process(rank()), writer.take());
  }

  // Error: kFixCall if another running process has this rank. If that process is still forming the
  // job, its formation fails, too.
  Status reserve_rank() {
    const Status published = publish_pid();
    if (published.code() != StatusCode::kFixCall) return published;
    const auto found = store_.wait(keys::process(rank()), {TimePoint{}, no_interruption_});
    if (!found.ok()) return published;  // the error is not that the key exists
    ByteReader reader(*found);
    const auto pid = reader.get<std::int64_t>();
    const std::int64_t own_pid = ::getpid();
    if (pid == own_pid) return {};
    if (has_process_ended(static_cast<pid_t>(pid))) {
      FARANDOLE_TRY(store_.remove(keys::process(rank())));
      return publish_pid();
    }
    const Status error = Status::fix_call(
        format_text("the processes {} and {} both have rank {} of {}; give each worker its own "
                    "rank, in RANK or the variable of the launcher that you use",
                    pid, own_pid, rank(), size()));
    // The other process may not have begun its first formation yet.
    FARANDOLE_TRY_ASSIGN(const auto formations, store_.add(keys::formations(rank()), 0));
    epoch_ = std::max<std::int64_t>(formations, 1);
    announce_failure(error);
    return error;
  }

  Status publish_stall_warning() {
    ByteWriter writer;
    writer.put(std::int64_t{stall_warning_of(options_).count()});
    FARANDOLE_TRY(store_.remove(keys::stall_warning()));  // that of the last formation
    return store_.set(keys::stall_warning(), writer.take());
  }

  std::string failure_text(const Status& status) const {
    return format_text("rank {} could not start: {}", rank(), status.message());
  }

  static Status read_result(const Bytes& value) {
    ByteReader reader(value);
    const std::string failure = reader.get_text();
    return failure.empty() ? Status() : Status::rebuild_group(failure);
  }

  void announce_result(const std::string& failure) {
    ByteWriter writer;
    writer.put_text(failure);
    // The Store keeps the first value, so all ranks read the first reason.
    (void)store_.set(keys::complete(epoch_), writer.take());
  }

  Result<std::shared_ptr<Segment>> attach_segment(const std::string& key, std::size_t bytes) {
    auto segment = attach_published_segment(store_, key, bytes, limit_);
    if (segment.status().code() != StatusCode::kRetry) return segment;
    return timeout_error(format_text("shared memory (`{}`)", key), segment.status());
  }

  std::vector<std::string> member_keys() const {
    std::vector<std::string> keys;
    for (int other = 0; other < size(); ++other) keys.push_back(keys::member(epoch_, other));
    return keys;
  }

  // Waits for all ranks with one call of the Store. If the formation ends before all ranks have
  // come, still reads the records that are there: an error that a record shows is more precise than
  // the announced result.
  Status attach_peers(std::vector<Peer>& peers) {
    auto members = store_.receive_all(member_keys(), keys::complete(epoch_), limit_);
    if (!members.ok()) return timeout_error(missing_ranks(), members.status());
    for (int other = 0; other < size(); ++other) {
      auto& member = (*members)[static_cast<std::size_t>(other)];
      if (!member) continue;
      FARANDOLE_TRY_ASSIGN(auto peer, attach_peer(other, *std::move(member)));
      peers.push_back(std::move(peer));
    }
    if (peers.size() == members->size()) return {};
    FARANDOLE_TRY_ASSIGN(const auto result, store_.wait(keys::complete(epoch_), limit_));
    FARANDOLE_TRY(read_result(result));
    return Status::fix_call(
        format_text("rank {} of {} came when the others had already formed the job without it; "
                    "all workers must get the same size, in WORLD_SIZE or the variable of the "
                    "launcher that you use",
                    rank(), size()));
  }

  Result<Peer> attach_peer(int other, LocalValue member) {
    FARANDOLE_TRY_ASSIGN(const auto record, keys::MemberRecord::decode(member.bytes));
    FARANDOLE_TRY(compare(other, record));
    if (member.descriptors.size() != 2)
      return Status::stop(
          format_text("rank {} sent {} descriptors instead of 2; do all ranks run the same version "
                      "of Farandole?",
                      other, member.descriptors.size()));
    FARANDOLE_TRY_ASSIGN(auto heap, PeerHeap::attach(member.descriptors[1]));
    return Peer{other, record.pid, std::move(member.descriptors[0]), std::move(heap)};
  }

  Status compare(int other, const keys::MemberRecord& record) const {
    if (record.size != size())
      return Status::fix_call(format_text(
          "rank {} was started with size {}, rank {} with size {}; all workers must get "
          "the same size, in WORLD_SIZE or the variable of the launcher that you "
          "use",
          rank(), size(), other, record.size));
    for (const auto& [variable, mine] : settings_) {
      const auto found = record.settings.find(variable);
      const std::string theirs = found == record.settings.end() ? "" : found->second;
      if (theirs != mine)
        return Status::fix_call(
            format_text("rank {} has {}={}, rank {} has {}; it must be the same in all workers",
                        rank(), variable, mine, other, theirs));
    }
    if (record.groups != options_.groups)
      return Status::fix_call(
          format_text("rank {} calls init with the groups {}, rank {} with {}; all ranks must give "
                      "the same groups in the same order",
                      rank(), groups_text(options_.groups), other, groups_text(record.groups)));
    return {};
  }

  std::string missing_ranks() {
    // Does not wait: our own member record would end the wait, and it is already there.
    const auto members = store_.receive_all(member_keys(), keys::member(epoch_, rank()),
                                            {TimePoint{}, no_interruption_});
    std::vector<int> missing;
    for (int other = 0; other < size(); ++other)
      if (!members.ok() || !(*members)[static_cast<std::size_t>(other)]) missing.push_back(other);
    return format_text("rank{} {}", missing.size() > 1 ? "s" : "", join_text(missing, ", "));
  }

  Status timeout_error(const std::string& what, const Status& status) const {
    const bool interrupted = options_.interrupted && options_.interrupted();
    if (status.code() != StatusCode::kRetry || interrupted) return status;
    return Status::rebuild_group(format_text(
        "rank {} waited {} s for {}, in vain: do all workers call init() equally often? A slow "
        "start can be given more time with FARANDOLE_START_TIMEOUT (seconds)",
        rank(), std::chrono::duration_cast<std::chrono::seconds>(options_.start_timeout).count(),
        what));
  }

  Status remove_keys(std::size_t groups) {
    std::vector<std::string> keys = member_keys();
    for (GroupId id = 0; id < groups; ++id) keys.push_back(keys::group(epoch_, id));
    for (const auto& key : {keys::doorbells(epoch_), keys::attached(epoch_), keys::complete(epoch_),
                            keys::departed(epoch_)})
      keys.push_back(key);
    return store_.remove_all(keys);
  }

  const EngineOptions& options_;
  const std::map<std::string, std::string> settings_ = options_.same_on_all_ranks();
  LocalStore& store_;
  const std::function<bool()> no_interruption_;  // empty, for reads that do not wait
  WaitLimit limit_;
  std::vector<std::vector<int>> groups_;
  std::int64_t epoch_ = 0;
};

}  // namespace

std::string group_text(const std::vector<int>& ranks) {
  return format_text("[{}]", join_text(ranks, ", "));
}

Status check_group(const std::vector<int>& ranks, int size) {
  const bool ascending =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  if (!ranks.empty() && ascending && (ranks.front() < 0 || ranks.back() >= size))
    return Status::fix_call(
        format_text("the group {} names rank {}, which is not one of this job (0 to {})",
                    group_text(ranks), ranks.front() < 0 ? ranks.front() : ranks.back(), size - 1));
  if (ranks.empty() || !ascending)
    return Status::fix_call(format_text(
        "the group {} is not an ascending list of ranks of this job (0 to {}); name each member "
        "once, the smallest first",
        group_text(ranks), size - 1));
  return {};
}

Status publish_group(LocalStore& store, const std::string& key, int members, const Costs& costs) {
  FARANDOLE_TRY_ASSIGN(const auto segment,
                       Segment::create("farandole-group", GroupMemory::bytes_needed(members)));
  GroupMemory(segment->data(), members).costs() = costs;
  return publish_segment(store, key, *segment);
}

Result<std::shared_ptr<Segment>> attach_published_segment(LocalStore& store, const std::string& key,
                                                          std::size_t bytes,
                                                          const WaitLimit& limit) {
  FARANDOLE_TRY_ASSIGN(const auto value, store.receive(key, limit));
  if (value.descriptors.size() != 1)
    return Status::stop(
        format_text("`{}` came with {} descriptors instead of 1; do all ranks run the same version "
                    "of Farandole?",
                    key, value.descriptors.size()));
  return Segment::attach(value.descriptors.front(), bytes);
}

Result<Formation> form(const EngineOptions& options, LocalStore& store) {
  FormationProtocol protocol(options, store);
  Formation formation;
  FARANDOLE_TRY_ASSIGN(formation.epoch, protocol.begin());
  const auto join = [&]() -> Status {
    FARANDOLE_TRY(protocol.check_limits());
    FARANDOLE_TRY(protocol.choose_groups(formation));
    FARANDOLE_TRY(protocol.publish(formation));
    FARANDOLE_TRY(protocol.attach(formation));
    return protocol.complete();
  };
  const auto what_failed = [&] {
    return format_text("rank {} cannot join", options.topology.rank);
  };
  const Status status = catch_bad_alloc(what_failed, join);
  if (!status.ok()) protocol.announce_failure(status);
  // Ranks that have completed the formation expect this rank to take part.
  if (!status.ok() && formation.doorbells) formation.doorbells->leave(status.message());
  protocol.depart(status.ok());
  if (!status.ok()) return status;
  return formation;
}

}  // namespace farandole
