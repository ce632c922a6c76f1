#include "formation/formation.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

#include "base/allocation.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/descriptor_limit.h"
#include "base/format.h"
#include "base/knobs.h"
#include "base/process_end.h"
#include "base/rank_names.h"
#include "base/try.h"
#include "collective/group_memory.h"
#include "formation/group_list.h"
#include "formation/shared_segment.h"
#include "mailbox/mailbox.h"
#include "rendezvous/keys.h"
#include "timeline/flight_record.h"
#include "transport/shm/heap_size.h"

namespace farandole {
namespace {

constexpr std::chrono::milliseconds kStartTimeoutMax = std::chrono::hours(24 * 365);

// Returns how many descriptors a rank may have open at the same time: one for its own heap, a pidfd
// of every process of its host, two for the engine's watch thread and, for a short time, the heap
// of every rank of its host, one segment and the duplicate of this segment. Adding a group later
// also opens a segment and its duplicate. If the ranks share their flight records, there is one
// more descriptor for each rank.
int descriptors_needed(int local_size, bool shares_flight_records) {
  return (shares_flight_records ? 3 : 2) * local_size + 5;
}

Result<Descriptor> open_own_process() {
  auto process = Descriptor::above_standard_streams(
      static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
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

std::string own_host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

// The steps of one formation, in the order in which form() calls them.
class FormationProtocol {
 public:
  explicit FormationProtocol(const FormationInput& input)
      : input_(input),
        options_(input.options),
        store_(*input.stores.job),
        local_store_(*input.stores.local),
        limit_{
            std::chrono::steady_clock::now() + std::min(options_.start_timeout, kStartTimeoutMax),
            options_.interrupted} {}

  // Returns the number of this formation, which is the same on all ranks.
  Result<std::int64_t> begin() {
    FARANDOLE_TRY_ASSIGN(const auto token, local_store_.wait(keys::host_token(), limit_));
    host_token_ = ByteReader(token).get_text();
    FARANDOLE_TRY(reserve_rank());
    if (rank() == 0) FARANDOLE_TRY(publish_stall_warning());
    FARANDOLE_TRY_ASSIGN(epoch_, store_.add(keys::formations(rank()), 1));
    return epoch_;
  }

  Status choose_groups(Formation& formation) {
    const bool is_elastic = options_.elastic_worker >= 0 && !options_.is_subset_of_job;
    formation.job_size = is_elastic ? JobSize::kChanges : JobSize::kFixed;
    FARANDOLE_TRY_ASSIGN(groups_, all_groups(options_.groups, size(), formation.job_size));
    formation.ranks_of = groups_;
    formation.given_groups = options_.groups;
    formation.bucket_bytes = options_.bucket_bytes;
    formation.hierarchical_adasum = options_.hierarchical_adasum;
    return {};
  }

  // Publishes this rank's record. Then one call of the Store waits for the records of all ranks. If
  // the formation ends before all ranks have joined, this function still compares the existing
  // records, because an error in a record is more precise than the announced result.
  Status find_ranks(Formation& formation) {
    std::vector<std::string> addresses;
    if (input_.listen) {
      FARANDOLE_TRY_ASSIGN(addresses, input_.listen(epoch_));
    }
    const keys::MemberRecord own_record{.pid = ::getpid(),
                                        .host_token = host_token_,
                                        .host_name = host_name_,
                                        .addresses = std::move(addresses),
                                        .cores = list_text(usable_hardware_threads()),
                                        .size = size(),
                                        .settings = settings_,
                                        .groups = options_.groups};
    FARANDOLE_TRY(store_.set(keys::member(epoch_, rank()), own_record.encode()));
    pass(input_.failpoint, Failpoint::Place::kFormationPublished);
    const auto members = store_.wait_for_all(member_keys(), keys::complete(epoch_), limit_);
    if (!members.ok()) return timeout_error(missing_ranks_text(), members.status());
    FARANDOLE_TRY_ASSIGN(formation.ranks, check_and_list_ranks(*members));
    for (const RankInfo& info : formation.ranks)
      if (info.host < 0) return incomplete_formation_error();
    FARANDOLE_TRY(check_given_topology(options_.topology, formation.ranks));
    formation.topology = topology_of(rank(), formation.ranks);
    local_ranks_ = formation.members_on_this_host(groups_[kWorld]);
    const int cores = cores_of_ranks(formation.host_of(rank()), formation.ranks);
    formation.cores = std::max(1, std::min(cores, core_quota().value_or(cores)));
    return {};
  }

  Status share_memory(Formation& formation) {
    const int local_size = formation.topology.local_size;
    FARANDOLE_TRY(check_descriptors(format_text("rank {}", rank()),
                                    descriptors_needed(local_size, input_.flight_record)));
    formation.costs = costs_on(local_size, formation.cores);
    const std::size_t bytes =
        options_.heap_bytes == 0 ? heap_bytes(heap_limits(), local_size) : options_.heap_bytes;
    FARANDOLE_TRY_ASSIGN(formation.heap, input_.make_heap(bytes));
    LocalValue own_memory;
    FARANDOLE_TRY_ASSIGN(auto process, open_own_process());
    FARANDOLE_TRY_ASSIGN(auto heap, duplicate_descriptor(formation.heap->descriptor()));
    own_memory.descriptors.push_back(std::move(process));
    own_memory.descriptors.push_back(std::move(heap));
    if (input_.flight_record) {
      FARANDOLE_TRY_ASSIGN(auto record, duplicate_descriptor(input_.flight_record->descriptor()));
      own_memory.descriptors.push_back(std::move(record));
    }
    FARANDOLE_TRY(local_store_.share(remember_shared_key(keys::memory(epoch_, rank())),
                                     std::move(own_memory)));
    if (local_ranks_.front() == rank()) FARANDOLE_TRY(share_doorbells());
    for (GroupId id = 0; id < groups_.size(); ++id) {
      const auto members = formation.members_on_this_host(groups_[id]);
      if (members.empty() || members.front() != rank()) continue;
      FARANDOLE_TRY(share_group(local_store_, remember_shared_key(keys::group(epoch_, id)),
                                static_cast<int>(members.size()), formation.costs));
    }
    pass(input_.failpoint, Failpoint::Place::kFormationShared);
    return {};
  }

  // Waits for the memory of all ranks of this host with one call of the LocalStore, and maps it.
  Status attach(Formation& formation) {
    std::vector<std::string> keys;
    for (const int peer_rank : local_ranks_) keys.push_back(keys::memory(epoch_, peer_rank));
    keys.push_back(keys::doorbells(epoch_));
    std::vector<GroupId> own_groups;
    for (GroupId id = 0; id < groups_.size(); ++id) {
      if (!std::ranges::binary_search(groups_[id], rank())) continue;
      own_groups.push_back(id);
      keys.push_back(keys::group(epoch_, id));
    }
    auto values = local_store_.receive_all(keys, keys::complete(epoch_), limit_);
    if (!values.ok()) return timeout_error(missing_memory_text(keys), values.status());
    if (!std::ranges::all_of(*values, [](const auto& value) { return value.has_value(); }))
      return ended_formation_error();
    auto next_value = values->begin();
    for (const int peer_rank : local_ranks_) {
      FARANDOLE_TRY_ASSIGN(auto peer, attach_peer(peer_rank, formation, *std::move(*next_value++)));
      formation.peers.push_back(std::move(peer));
    }
    FARANDOLE_TRY(attach_doorbells(formation, **next_value++));
    for (const GroupId id : own_groups) FARANDOLE_TRY(attach_group(formation, id, **next_value++));
    pass(input_.failpoint, Failpoint::Place::kFormationAttached);
    return {};
  }

  // Returns ok when all ranks have attached everything, otherwise the error of the first rank that
  // failed.
  Status complete() {
    FARANDOLE_TRY_ASSIGN(const std::int64_t ranks_attached, store_.add(keys::attached(epoch_), 1));
    pass(input_.failpoint, Failpoint::Place::kFormationCounted);
    if (ranks_attached == size()) (void)store_.set(keys::complete(epoch_), keys::text_value(""));
    auto result_value = store_.wait(keys::complete(epoch_), limit_);
    if (result_value.ok()) return read_result(*result_value);
    const Status own_error =
        timeout_error("the other ranks to map the shared memory", result_value.status());
    // Tell the other ranks that this rank gives up. But if the formation was completed before this
    // announcement, this rank is part of the job.
    announce_failure(own_error);
    result_value = store_.wait(keys::complete(epoch_), {TimePoint{}, never_interrupted_});
    const Status result = result_value.ok() ? read_result(*result_value) : own_error;
    return result.ok() ? result : own_error;
  }

  // Tells the other ranks why this rank cannot take part, so that they need not wait for the
  // time-out. Each Store keeps the first value of a key, so all ranks read the first reason. If
  // this rank has read a reason in one Store, it copies this reason to the other Store. On one
  // host, both Stores may be the same.
  void announce_failure(const Status& status) {
    const Bytes failure =
        keys::text_value(first_failure_.empty()
                             ? format_text("rank {} could not start: {}", rank(), status.message())
                             : first_failure_);
    (void)store_.set(keys::complete(epoch_), failure);
    (void)local_store_.set(keys::complete(epoch_), failure);
  }

  // Removes the keys that this rank has shared. Every rank calls depart() at the end of the
  // formation, and the call of the last rank also removes the keys of the job. If a Store fails,
  // some keys remain.
  void depart() {
    (void)local_store_.remove_all(shared_keys_);
    const auto ranks_departed = store_.add(keys::departed(epoch_), 1);
    if (!ranks_departed.ok() || *ranks_departed != size()) return;
    std::vector<std::string> keys = member_keys();
    for (const auto& key : {keys::attached(epoch_), keys::complete(epoch_), keys::departed(epoch_)})
      keys.push_back(key);
    if (input_.stores.for_one_formation) {
      keys.push_back(keys::stall_warning());
      for (int other_rank = 0; other_rank < size(); ++other_rank) {
        keys.push_back(keys::process(other_rank));
        keys.push_back(keys::formations(other_rank));
        keys.push_back(keys::place(other_rank));
      }
    }
    (void)store_.remove_all(keys);
  }

 private:
  int rank() const { return options_.topology.rank; }
  int size() const { return options_.topology.size; }

  // Remembers a key that depart() must remove, and returns it.
  const std::string& remember_shared_key(std::string key) {
    return shared_keys_.emplace_back(std::move(key));
  }

  Status publish_process() {
    return store_.set(keys::process(rank()),
                      keys::ProcessRecord{::getpid(), host_token_, host_name_}.encode());
  }

  // Error: kFixCall if another running process has this rank. If the other process is still forming
  // the job, its formation fails, too.
  Status reserve_rank() {
    const Status publish_status = publish_process();
    if (publish_status.code() != StatusCode::kFixCall) return publish_status;
    const auto record = store_.wait(keys::process(rank()), {TimePoint{}, never_interrupted_});
    if (!record.ok()) return publish_status;  // the error of publish_process() has another cause
    FARANDOLE_TRY_ASSIGN(const auto other_process, keys::ProcessRecord::decode(*record));
    const bool same_host = other_process.host_token == host_token_;
    if (same_host && other_process.pid == ::getpid()) return {};
    if (same_host && has_process_ended(static_cast<pid_t>(other_process.pid))) {
      FARANDOLE_TRY(store_.remove(keys::process(rank())));
      return publish_process();
    }
    const auto host_suffix = [&](const std::string& name) {
      return same_host ? "" : format_text(" on {}", name);
    };
    const Status error = Status::fix_call(
        format_text("the processes {}{} and {}{} both have rank {} of {}; give each worker its own "
                    "rank, in RANK or the variable of the launcher that you use",
                    other_process.pid, host_suffix(other_process.host_name), ::getpid(),
                    host_suffix(host_name_), rank(), size()));
    // The other process may not have begun its first formation yet.
    FARANDOLE_TRY_ASSIGN(const auto formations, store_.add(keys::formations(rank()), 0));
    epoch_ = std::max<std::int64_t>(formations, 1);
    announce_failure(error);
    return error;
  }

  Status publish_stall_warning() {
    ByteWriter writer;
    writer.put(std::int64_t{stall_warning_time(options_).count()});
    FARANDOLE_TRY(store_.remove(keys::stall_warning()));  // the key of the previous formation
    return store_.set(keys::stall_warning(), writer.take());
  }

  Status read_result(const Bytes& value) {
    first_failure_ = ByteReader(value).get_text();
    return first_failure_.empty() ? Status() : Status::rebuild_group(first_failure_);
  }

  std::vector<std::string> member_keys() const {
    std::vector<std::string> keys;
    for (int other_rank = 0; other_rank < size(); ++other_rank)
      keys.push_back(keys::member(epoch_, other_rank));
    return keys;
  }

  // Returns the RankInfo of each rank, by rank. A rank that has not joined has the host −1. Errors:
  // kFixCall for the first rank whose size, settings or groups differ from those of this rank.
  Result<std::vector<RankInfo>> check_and_list_ranks(const StoreValues& members) const {
    std::vector<RankInfo> ranks(members.size());
    std::vector<std::string> tokens;
    for (std::size_t other_rank = 0; other_rank < members.size(); ++other_rank) {
      ranks[other_rank].host = -1;
      if (!members[other_rank]) continue;
      FARANDOLE_TRY_ASSIGN(auto record, keys::MemberRecord::decode(*members[other_rank]));
      FARANDOLE_TRY(check_record(static_cast<int>(other_rank), record));
      tokens.push_back(std::move(record.host_token));
      ranks[other_rank] = {0, std::move(record.host_name), record.pid, std::move(record.addresses),
                           std::move(record.cores)};
    }
    const std::vector<int> numbers = host_numbers(tokens);
    auto number = numbers.begin();
    for (RankInfo& info : ranks)
      if (info.host >= 0) info.host = *number++;
    return ranks;
  }

  Status check_record(int record_rank, const keys::MemberRecord& record) const {
    if (record.size != size())
      return Status::fix_call(format_text(
          "rank {} was started with size {}, rank {} with size {}; all workers must get "
          "the same size, in WORLD_SIZE or the variable of the launcher that you "
          "use",
          rank(), size(), record_rank, record.size));
    for (const auto& [variable, own_value] : settings_) {
      const auto setting = record.settings.find(variable);
      const std::string record_value = setting == record.settings.end() ? "" : setting->second;
      if (record_value != own_value)
        return Status::fix_call(
            format_text("rank {} has {}={}, rank {} has {}; it must be the same in all workers",
                        rank(), variable, own_value, record_rank, record_value));
    }
    if (record.groups != options_.groups)
      return Status::fix_call(format_text(
          "rank {} calls init with the groups {}, rank {} with {}; all ranks must give "
          "the same groups in the same order",
          rank(), groups_text(options_.groups), record_rank, groups_text(record.groups)));
    return {};
  }

  // Returns the error for a formation that has ended before all ranks have joined: the announced
  // failure, or that this rank came too late.
  Status incomplete_formation_error() {
    FARANDOLE_TRY_ASSIGN(const auto result, store_.wait(keys::complete(epoch_), limit_));
    FARANDOLE_TRY(read_result(result));
    return Status::fix_call(
        format_text("rank {} of {} came when the others had already formed the job without it; "
                    "all workers must get the same size, in WORLD_SIZE or the variable of the "
                    "launcher that you use",
                    rank(), size()));
  }

  // Returns the error for a formation that has ended while this rank waited for memory. Usually,
  // another rank of this host has failed.
  Status ended_formation_error() {
    FARANDOLE_TRY_ASSIGN(const auto result, local_store_.wait(keys::complete(epoch_), limit_));
    FARANDOLE_TRY(read_result(result));
    return Status::stop(format_text(
        "the formation was completed before the ranks on the host of rank {} had shared their "
        "memory; do all ranks run the same version of Farandole?",
        rank()));
  }

  // Returns the size of the segment that all ranks of a host share. It holds the doorbells and the
  // memory of the mailboxes.
  std::size_t bytes_for_host() const {
    return Doorbells::bytes_needed(size()) +
           Mailbox::bytes_needed(static_cast<int>(local_ranks_.size()));
  }

  Status share_doorbells() {
    FARANDOLE_TRY_ASSIGN(const auto segment,
                         Segment::create("farandole-doorbells", bytes_for_host()));
    return share_segment(local_store_, remember_shared_key(keys::doorbells(epoch_)), *segment);
  }

  Result<Peer> attach_peer(int peer_rank, const Formation& formation, LocalValue memory) const {
    const std::size_t descriptors_expected = input_.flight_record ? 3 : 2;
    if (memory.descriptors.size() != descriptors_expected)
      return Status::stop(format_text(
          "rank {} sent {} descriptors instead of {}; do all ranks run the same version of "
          "Farandole?",
          peer_rank, memory.descriptors.size(), descriptors_expected));
    FARANDOLE_TRY_ASSIGN(auto heap, PeerHeap::attach(memory.descriptors[1]));
    Peer peer{peer_rank, formation.ranks[static_cast<std::size_t>(peer_rank)].pid,
              std::move(memory.descriptors[0]), std::move(heap)};
    if (input_.flight_record && local_ranks_.front() == rank()) {
      FARANDOLE_TRY_ASSIGN(peer.flight_record,
                           Segment::attach(memory.descriptors[2], FlightRecorder::bytes_needed()));
    }
    return peer;
  }

  Status attach_doorbells(Formation& formation, const LocalValue& value) const {
    FARANDOLE_TRY_ASSIGN(formation.doorbells_segment,
                         attach_segment(keys::doorbells(epoch_), value, bytes_for_host()));
    std::byte* const memory = formation.doorbells_segment->data();
    formation.doorbells = std::make_unique<Doorbells>(memory, rank(), size());
    formation.mailbox_memory = memory + Doorbells::bytes_needed(size());
    return {};
  }

  Status attach_group(Formation& formation, GroupId id, const LocalValue& value) const {
    const std::vector<int>& ranks = groups_[id];
    const auto members = static_cast<int>(formation.members_on_this_host(ranks).size());
    FARANDOLE_TRY_ASSIGN(auto segment, attach_segment(keys::group(epoch_, id), value,
                                                      GroupMemory::bytes_needed(members)));
    formation.groups.push_back({id, ranks, formation.hosts_of(ranks), std::move(segment)});
    return {};
  }

  // Returns a text with the ranks that have not joined. If there are several hosts, the text also
  // names the hosts and ranks that have joined.
  std::string missing_ranks_text() {
    // This wait does not block, because the key of our own record exists and ends the wait.
    const auto members = store_.wait_for_all(member_keys(), keys::member(epoch_, rank()),
                                             {TimePoint{}, never_interrupted_});
    std::vector<int> missing_ranks;
    for (int other_rank = 0; other_rank < size(); ++other_rank)
      if (!members.ok() || !(*members)[static_cast<std::size_t>(other_rank)])
        missing_ranks.push_back(other_rank);
    std::string text = format_text("rank{} {}", missing_ranks.size() > 1 ? "s" : "",
                                   join_text(missing_ranks, ", "));
    const bool is_one_store = input_.stores.job == input_.stores.local;
    if (is_one_store || !members.ok()) return text;
    const auto joined_ranks = check_and_list_ranks(*members);
    return joined_ranks.ok() ? format_text("{} (there are {})", text, hosts_text(*joined_ranks))
                             : text;
  }

  // Returns a text with the ranks of this host that have not shared their memory.
  std::string missing_memory_text(const std::vector<std::string>& keys) {
    const auto values =
        local_store_.wait_for_all(keys, keys::host_token(), {TimePoint{}, never_interrupted_});
    std::vector<int> missing_ranks;
    for (std::size_t i = 0; i < local_ranks_.size(); ++i)
      if (values.ok() && !(*values)[i]) missing_ranks.push_back(local_ranks_[i]);
    if (missing_ranks.empty())
      missing_ranks.push_back(local_ranks_.front());  // the rank that shares the doorbells
    return format_text("the shared memory of {}", ranks_text(missing_ranks));
  }

  Status timeout_error(const std::string& awaited, const Status& status) const {
    const bool interrupted = options_.interrupted && options_.interrupted();
    if (status.code() != StatusCode::kRetry || interrupted) return status;
    return Status::rebuild_group(format_text(
        "rank {} waited {} s for {}, in vain: do all workers call init() equally often? A slow "
        "start can be given more time with FARANDOLE_START_TIMEOUT (seconds)",
        rank(), std::chrono::duration_cast<std::chrono::seconds>(options_.start_timeout).count(),
        awaited));
  }

  const FormationInput& input_;
  const EngineOptions& options_;
  const std::map<std::string, std::string> settings_ = options_.same_on_all_ranks();
  const std::string host_name_ = own_host_name();
  Store& store_;
  LocalStore& local_store_;
  const std::function<bool()> never_interrupted_;  // an empty function, for reads that do not wait
  WaitLimit limit_;
  std::string host_token_;
  std::vector<std::vector<int>> groups_;
  std::vector<int> local_ranks_;          // the ranks of this host
  std::vector<std::string> shared_keys_;  // the keys of this rank in the LocalStore
  std::string first_failure_;             // the error that another rank has announced
  std::int64_t epoch_ = 0;
};

}  // namespace

int Formation::hosts() const { return 1 + std::ranges::max(ranks, {}, &RankInfo::host).host; }

std::vector<int> Formation::hosts_of(const std::vector<int>& members) const {
  std::vector<int> hosts;
  for (const int member : members) hosts.push_back(host_of(member));
  return hosts;
}

bool FormedGroup::is_on_several_hosts() const {
  return std::ranges::any_of(hosts, [this](int host) { return host != hosts.front(); });
}

HostParts FormedGroup::parts(int own_rank) const {
  HostParts parts;
  std::map<int, std::size_t> parts_by_host;  // index of the host part, by host number
  for (std::size_t member = 0; member < ranks.size(); ++member) {
    const auto [part, is_new] = parts_by_host.emplace(hosts[member], parts.members.size());
    if (is_new) parts.members.emplace_back();
    parts.members[part->second].push_back(static_cast<int>(member));
    if (ranks[member] == own_rank) parts.host = static_cast<int>(part->second);
  }
  return parts;
}

std::vector<int> Formation::members_on_this_host(const std::vector<int>& members) const {
  std::vector<int> local;
  for (const int member : members)
    if (host_of(member) == host_of(topology.rank)) local.push_back(member);
  return local;
}

const Peer& Formation::peer(int rank) const {
  const auto peer = std::ranges::lower_bound(peers, rank, {}, &Peer::rank);
  CHECK(peer != peers.end() && peer->rank == rank, "only ranks of this host are peers");
  return *peer;
}

Result<Formation> form(const FormationInput& input) {
  FormationProtocol protocol(input);
  Formation formation;
  FARANDOLE_TRY_ASSIGN(formation.epoch, protocol.begin());
  const auto join = [&]() -> Status {
    FARANDOLE_TRY(protocol.choose_groups(formation));
    FARANDOLE_TRY(protocol.find_ranks(formation));
    FARANDOLE_TRY(protocol.share_memory(formation));
    FARANDOLE_TRY(protocol.attach(formation));
    return protocol.complete();
  };
  const auto failure_text = [&] {
    return format_text("rank {} cannot join", input.options.topology.rank);
  };
  const Status status = catch_bad_alloc(failure_text, join);
  if (!status.ok()) protocol.announce_failure(status);
  // Ranks that have completed the formation would wait for this rank. leave() tells them that this
  // rank has failed.
  if (!status.ok() && formation.doorbells) formation.doorbells->leave(status.message());
  if (status.ok()) pass(input.failpoint, Failpoint::Place::kFormationCompleted);
  protocol.depart();
  if (!status.ok()) return status;
  pass(input.failpoint, Failpoint::Place::kFormationDeparted);
  return formation;
}

}  // namespace farandole
