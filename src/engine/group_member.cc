#include "engine/group_member.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/process_end.h"
#include "collective/group_memory.h"
#include "hosts/start_step.h"
#include "submission/submission_check.h"

namespace farandole {
namespace {

// The identity of a decision that moves no data.
constexpr std::uint64_t kNoDataIdentity = 0;
// How long a failed call waits for members that may still write to its memory. Within milliseconds,
// such a member publishes that it writes no more, unless a signal has stopped its process.
constexpr std::chrono::milliseconds kWritersTimeout(1000);
// The delay before the next try if SharedHeap::unshare() failed.
constexpr std::chrono::milliseconds kRetryDelay(50);

CallId call_id_of(Record& record) { return reinterpret_cast<std::uintptr_t>(&record); }

// The call id is the address of the record, which does not change while the call is in flight.
Record& record_of(CallId call_id) { return *reinterpret_cast<Record*>(call_id); }

int member_of(const std::vector<int>& ranks, int rank) {
  const auto position = std::find(ranks.begin(), ranks.end(), rank);
  CHECK(position != ranks.end(), "only members take part");
  return static_cast<int>(position - ranks.begin());
}

// The flag board of the group's members on this host.
FlagBoard board_on_this_host(const FormedGroup& formed_group, const Formation& formation) {
  const auto ranks = formation.members_on_this_host(formed_group.ranks);
  const GroupMemory memory(formed_group.segment->data(), static_cast<int>(ranks.size()));
  return FlagBoard(memory.board(), member_of(ranks, formation.doorbells->rank()), ranks,
                   *formation.doorbells);
}

StepNumber step_number_of(const Decision& decision) {
  return std::visit([](const auto& kind) { return kind.step_number; }, decision);
}

// Asks for huge pages for large new memory, because the page faults of small pages cost more than
// the copy itself. The first page may also contain memory of the allocator; that is harmless.
void ask_for_huge_pages(std::byte* memory, std::size_t bytes) {
  constexpr std::size_t kPageBytes = 4096;
  if (bytes < kHugePageBytes) return;
  std::byte* const begin = memory - reinterpret_cast<std::uintptr_t>(memory) % kPageBytes;
  ::madvise(begin, static_cast<std::size_t>(memory + bytes - begin), MADV_HUGEPAGE);
}

// Allocates memory for the received rows; null if the system has no memory left. The memory is not
// from the shared heap, because a forked child would see there what the engine stores later.
std::byte* memory_for_received(Record& record, std::span<const std::int64_t> rows,
                               std::int64_t bytes_per_row) {
  record.outcome.received_rows.assign(rows.begin(), rows.end());
  std::int64_t bytes = 0;
  for (const std::int64_t count : rows) bytes += count * bytes_per_row;
  // Allocates at least one byte, because null would mean that there is no memory.
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  auto* const memory = new (std::align_val_t{kHeapAlignment}, std::nothrow) std::byte[size];
  if (memory != nullptr) ask_for_huge_pages(memory, size);
  record.outcome.received = std::shared_ptr<std::byte>(memory, [](std::byte* received) {
    ::operator delete[](received, std::align_val_t{kHeapAlignment});
  });
  return memory;
}

CollectiveCall single_call_of(Record& record, const std::vector<int>& ranks) {
  const Submission& submission = record.submission;
  const OperationRow& row = row_of(submission.operation);
  CollectiveCall call;
  call.operation = submission.operation;
  call.dtype = submission.dtype;
  call.reduce_op = submission.reduce_op;
  call.prescale = submission.prescale;
  call.postscale = submission.postscale;
  if (row.rooted) call.root = member_of(ranks, submission.root_rank);
  call.count = element_count(submission);
  call.input = static_cast<const std::byte*>(submission.input);
  call.output = static_cast<std::byte*>(submission.output);
  if (submission.shape.empty()) return call;
  call.rows = submission.shape.front();
  call.row_bytes = row_bytes(submission);
  call.splits = submission.splits;
  if (row.has_splits && call.splits.empty()) {
    const auto members = static_cast<std::int64_t>(ranks.size());
    call.splits.assign(ranks.size(), call.rows / members);
  }
  if (row.output_rule == OutputRule::kEngineMemory)
    call.allocate = [&record, bytes = call.row_bytes](std::span<const std::int64_t> rows) {
      return memory_for_received(record, rows, bytes);
    };
  return call;
}

// The arguments of a step that this rank has not submitted, because it has joined.
CollectiveCall call_without_data(const Signature& signature) {
  CollectiveCall call;
  call.operation = signature.operation;
  call.dtype = signature.dtype;
  call.reduce_op = signature.reduce_op;
  call.prescale = signature.prescale;
  call.postscale = signature.postscale;
  call.joined = true;
  call.count = 1;
  for (const std::int64_t dimension : signature.dimensions) call.count *= dimension;
  call.row_bytes = call.count * static_cast<std::int64_t>(row_of(call.dtype).bytes);
  call.allocate = [](std::span<const std::int64_t>) -> std::byte* { return nullptr; };
  return call;
}

Status status_of_finished(const Record& record) {
  const OperationRow& row = row_of(record.submission.operation);
  if (row.output_rule != OutputRule::kEngineMemory || record.outcome.received) return {};
  const auto& rows = record.outcome.received_rows;
  return Status::stop(format_text(
      "no memory for the result of {}: {} rows of {} bytes; the other ranks got theirs",
      call_title(record.submission), std::accumulate(rows.begin(), rows.end(), std::int64_t{0}),
      row_bytes(record.submission)));
}

}  // namespace

GroupMember::GroupMember(const FormedGroup& formed_group, const Formation& formation,
                         FlightRecorder& recorder, const Clock& clock, Channels* channels)
    : id_(formed_group.id),
      formation_(formation),
      recorder_(recorder),
      clock_(clock),
      segment_(formed_group.segment),
      ranks_(formed_group.ranks),
      board_(board_on_this_host(formed_group, formation)),
      fusion_(*formation.heap, formation.bucket_bytes),
      agreement_(member_of(formed_group.ranks, formation.doorbells->rank()), formed_group.ranks,
                 {.names_max = kNamesMax,
                  .fusion_bytes = static_cast<std::int64_t>(formation.bucket_bytes)},
                 formed_group.hosts),
      pin_(*formation.heap) {
  group_.member = board_.member();
  group_.ranks = formation.members_on_this_host(formed_group.ranks);
  group_.board = &board_;
  group_.heap = formation.heap.get();
  for (const int rank : group_.ranks) group_.heaps.push_back(formation.peer(rank).heap.get());

  const GroupMemory memory(formed_group.segment->data(), group_.members());
  group_.costs = memory.costs();
  for (int member = 0; member < group_.members(); ++member)
    group_.stagings.push_back(memory.staging(member));
  open_rings(memory);
  if (!formed_group.is_on_several_hosts()) return;
  CHECK(channels != nullptr, "a job on several hosts has channels");
  other_hosts_ = std::make_unique<OtherHosts>(formed_group, formation, *channels, memory);
}

void GroupMember::connect() {
  if (!other_hosts_) return;
  other_hosts_->connect(clock_.now());
  group_.parts = other_hosts_->parts();
}

// Opens the message rings between the leader (the lowest member on this host) and every other
// member on this host.
void GroupMember::open_rings(const GroupMemory& memory) {
  Doorbells& doorbells = *formation_.doorbells;
  const int own_member = group_.member;
  if (own_member == 0) sent_to_leader_ = memory.sent_to_leader();
  if (own_member > 0) {
    const int leader = group_.ranks.front();
    rings_.emplace(
        member_of(ranks_, leader),
        PeerRings{{memory.ring_to_leader(own_member), doorbells, leader, memory.sent_to_leader()},
                  {memory.ring_from_leader(own_member), doorbells, leader},
                  {}});
    return;
  }
  for (int other_member = 1; other_member < group_.members(); ++other_member) {
    const int rank = group_.ranks[static_cast<std::size_t>(other_member)];
    rings_.emplace(member_of(ranks_, rank),
                   PeerRings{{memory.ring_from_leader(other_member), doorbells, rank},
                             {memory.ring_to_leader(other_member), doorbells, rank},
                             {}});
  }
}

void GroupMember::allocate_huge_pages() {
  segment_->allocate_huge_pages(group_.stagings[static_cast<std::size_t>(group_.member)],
                                kStagingBytes);
}

Status GroupMember::supports(Operation operation) const {
  return farandole::supports(group_, operation);
}

void GroupMember::submit(Record& record) {
  record.index_in_flight = in_flight_.size();
  in_flight_.push_back(&record);
  agreement_.submit(call_id_of(record), record.interned->interned, record.context,
                    record.submitted_at);
}

bool GroupMember::advance(std::vector<Record*>& finished) {
  if (end_status_) return finish_ended(finished);
  bool progressed = receive_messages(finished);
  if (end_status_) return true;
  progressed |= run_decision(finished);
  if (end_status_) return true;
  if (other_hosts_ && may_enter_) other_hosts_->forward_end(completed_);
  progressed |= send_messages();
  return progressed;
}

void GroupMember::tick(TimePoint now) {
  if (end_status_) return unshare_memory(now);
  agreement_.tick(now);
}

std::optional<TimePoint> GroupMember::deadline() const {
  return end_status_ ? writers_deadline_ : agreement_.deadline();
}

bool GroupMember::stop_entering() {
  may_enter_ = false;
  if (end_status_ || decision_ == nullptr || stage_ == Stage::kPack) return true;
  return stage_ != Stage::kUnpack && board_.try_close();
}

bool GroupMember::end(const Status& status, std::vector<Record*>& finished) {
  if (end_status_) return false;
  bool gives_up_step = false;
  if (!stop_entering() && step_) {
    // If the entries differ, no rank can complete the step, so end() gives up no step.
    gives_up_step = other_hosts_ != nullptr && stage_ != Stage::kMispredicted;
    board_.abandon();
    if (board_.entry(board_.member()).output != kNoLocation) {
      writers_deadline_ = clock_.now() + kWritersTimeout;
      exposed_output_ = farandole::exposed_output(*step_);
    }
  }
  end_status_ = status;
  // Stop the lane first, because it may have borrowed memory of the step and of its calls.
  if (other_hosts_ && !other_hosts_->stop()) gives_up_step = true;
  drop_step();
  decision_ = nullptr;
  for (Record* const record : in_flight_)
    record->outcome.status = cannot_finish_error(record->submission, status);
  finish_ended(finished);
  return gives_up_step;
}

// A process that has ended, before or after its rank left, writes no more data.
bool GroupMember::any_member_may_write() const {
  for (int member = 0; member < group_.members(); ++member) {
    const int rank = group_.ranks[static_cast<std::size_t>(member)];
    if (board_.may_still_write(member) && !has_ended(formation_.peer(rank).pidfd)) return true;
  }
  return false;
}

bool GroupMember::finish_ended(std::vector<Record*>& finished) {
  if (writers_deadline_ && any_member_may_write()) return false;
  writers_deadline_.reset();
  const bool progressed = !in_flight_.empty();
  finished.insert(finished.end(), in_flight_.begin(), in_flight_.end());
  in_flight_.clear();
  return progressed;
}

// Gives the exposed memory new private pages, so that later writes of other ranks do not change it.
// Tries again later if other steps still use the same pages.
void GroupMember::unshare_memory(TimePoint now) {
  if (!writers_deadline_ || now < *writers_deadline_) return;
  if (formation_.heap->unshare(exposed_output_).ok())
    writers_deadline_.reset();
  else
    writers_deadline_ = now + kRetryDelay;
}

void GroupMember::drop_step() {
  step_.reset();
  pin_.unpin();
}

bool GroupMember::receive_messages(std::vector<Record*>& finished) {
  const bool from_rings = receive_from_rings(finished);
  return receive_from_other_hosts(finished) || from_rings;
}

bool GroupMember::receive_from_rings(std::vector<Record*>& finished) {
  if (sent_to_leader_ != nullptr) {
    const std::uint32_t messages_sent = sent_to_leader_->messages.load(std::memory_order_seq_cst);
    if (messages_sent == messages_read_) return false;
    messages_read_ = messages_sent;
  }
  bool progressed = false;
  for (auto& [member, rings] : rings_) {
    while (const auto message = rings.ring_in.try_receive()) {
      progressed = true;
      handle_message(member, *message, finished);
      if (end_status_) return true;
    }
  }
  return progressed;
}

bool GroupMember::receive_from_other_hosts(std::vector<Record*>& finished) {
  if (!other_hosts_) return false;
  bool progressed = false;
  while (!end_status_) {
    const auto message = other_hosts_->next_message();
    if (!message) break;
    progressed = true;
    handle_message(message->first, message->second, finished);
  }
  return progressed;
}

void GroupMember::handle_message(int member, std::span<const std::byte> message,
                                 std::vector<Record*>& finished) {
  const Status status = agreement_.receive(member, message, clock_.now());
  if (!status.ok()) end(status, finished);
}

bool GroupMember::send_messages() {
  bool progressed = false;
  while (auto message = agreement_.next_message()) {
    if (other_hosts_ && other_hosts_->has_member(message->to)) {
      other_hosts_->send_message(message->to, std::move(message->bytes));
      progressed = true;
      continue;
    }
    rings_.at(message->to).to_send.push_back(std::move(message->bytes));
    ++unsent_count_;
  }
  if (unsent_count_ == 0) return progressed;
  const std::size_t unsent_before = unsent_count_;
  for (auto& [member, rings] : rings_) {
    while (!rings.to_send.empty() && rings.ring_out.try_send(rings.to_send.front())) {
      rings.to_send.pop_front();
      --unsent_count_;
    }
  }
  return progressed || unsent_count_ < unsent_before;
}

void GroupMember::send_group_end(int rank, const std::string& reason) {
  if (other_hosts_ && other_hosts_->is_leader()) other_hosts_->send_end(completed_, rank, reason);
}

void GroupMember::handle_group_end(const GroupEnd& end) {
  if (other_hosts_) other_hosts_->keep_end(end);
}

std::optional<GroupEnd> GroupMember::end_on_other_host() const {
  return other_hosts_ && !end_status_ ? other_hosts_->forwarded_end() : std::nullopt;
}

// The leader publishes phase 1 when it has learned that all hosts have entered the step.
bool GroupMember::must_finish_step() {
  if (!other_hosts_ || end_status_) return false;
  if (stage_ == Stage::kUnpack) return true;
  if (stage_ != Stage::kRun || !step_) return false;
  return board_.generation() != 0 && board_.all_entered() && board_.phase(0) > 0;
}

// Each call of this function enters a new step or continues the current one. A fused step is packed
// before this rank enters it, so its data is ready when other ranks see the entry.
bool GroupMember::run_decision(std::vector<Record*>& finished) {
  drop_rolled_back_step();
  if (decision_ == nullptr && (!may_enter_ || !begin_decision(finished))) return false;
  if (stage_ == Stage::kMispredicted || (stage_ == Stage::kPack && !may_enter_)) return false;
  if (stage_ == Stage::kPack) {
    if (!fusion_.pack()) return true;
    step_.emplace(make_step(*decision_));
    stage_ = Stage::kRun;
  }
  if (stage_ == Stage::kRun) return run_step(finished);
  if (!fusion_.unpack()) return true;
  finish_decision(finished);
  return true;
}

void GroupMember::drop_rolled_back_step() {
  if (!agreement_.take_rollback()) return;
  if (step_) board_.roll_back();
  drop_step();
  decision_ = nullptr;
  stage_ = Stage::kNone;
}

bool GroupMember::begin_decision(std::vector<Record*>& finished) {
  decision_ = agreement_.next_decision();
  if (decision_ == nullptr) return false;
  has_recorded_running_ = false;
  const auto* const step = std::get_if<Step>(decision_);
  if (step == nullptr || step->call_ids.size() < 2) {
    step_.emplace(make_step(*decision_));
    stage_ = Stage::kRun;
    return true;
  }
  stage_ = Stage::kPack;
  const Status status = prepare_fusion(*step);
  if (!status.ok()) end(status, finished);
  return status.ok();
}

bool GroupMember::run_step(std::vector<Record*>& finished) {
  const Progress progress = farandole::advance(*step_);
  switch (progress) {
    case Progress::kPending:
      return false;
    case Progress::kAdvanced:
      record_running();
      return true;
    case Progress::kMisprediction:
      stage_ = Stage::kMispredicted;
      agreement_.record_misprediction();
      return true;
    case Progress::kMismatch:
      end(Status::stop("an entry of its members makes no sense, which is a bug in Farandole"),
          finished);
      return true;
    case Progress::kDone:
      break;
  }
  drop_step();
  const auto* const step = std::get_if<Step>(decision_);
  if (step != nullptr && step->call_ids.size() > 1) {
    stage_ = Stage::kUnpack;
    if (!fusion_.unpack()) return true;
  }
  finish_decision(finished);
  return true;
}

// Records that the calls of the step are running: all members have entered it, so the launcher must
// no longer report these calls as waiting. Steps that finish immediately are not recorded.
void GroupMember::record_running() {
  const auto* const step = std::get_if<Step>(decision_);
  if (std::exchange(has_recorded_running_, true) || step == nullptr) return;
  const TimePoint now = clock_.now();
  for (const CallId call_id : step->call_ids)
    recorder_.record_running(record_of(call_id).handle, now);
}

Status GroupMember::prepare_fusion(const Step& step) {
  fusion_.clear();
  for (const CallId call_id : step.call_ids) {
    const Submission& submission = record_of(call_id).submission;
    CHECK(may_be_fused(submission.operation, submission.reduce_op),
          "only calls that may share a transfer are fused");
    const auto element_bytes = static_cast<std::int64_t>(row_of(submission.dtype).bytes);
    fusion_.add({.input = static_cast<const std::byte*>(submission.input),
                 .output = static_cast<std::byte*>(submission.output),
                 .bytes = element_count(submission) * element_bytes});
  }
  return fusion_.choose_memory();
}

// A decision without data is entered like a barrier, so that all members receive it.
CollectiveStep GroupMember::make_step(const Decision& decision) {
  const auto* const step = std::get_if<Step>(&decision);
  if (step == nullptr) {
    const StepNumber number = step_number_of(decision);
    return choose_step(group_, {number.generation, number.sequence, kNoDataIdentity},
                       {.operation = Operation::kBarrier});
  }
  CollectiveCall call = call_of(*step);
  const auto exposed = exposable_memory(group_, call);
  if (!exposed[0].empty()) pin_.pin(exposed);
  const auto [generation, sequence] = step->step_number;
  return choose_step(group_, {generation, sequence, step->identity}, std::move(call));
}

CollectiveCall GroupMember::call_of(const Step& step) {
  if (step.signature_if_joined) return call_without_data(*step.signature_if_joined);
  CollectiveCall call = single_call_of(record_of(step.call_ids.front()), ranks_);
  if (step.call_ids.size() < 2) return call;
  call.count = fusion_.bytes() / static_cast<std::int64_t>(row_of(call.dtype).bytes);
  call.input = fusion_.memory();
  call.output = fusion_.memory();
  return call;
}

void GroupMember::finish_decision(std::vector<Record*>& finished) {
  completed_ = step_number_of(*decision_).sequence;
  if (const auto* const step = std::get_if<Step>(decision_)) {
    for (const CallId call_id : step->call_ids) {
      Record& record = record_of(call_id);
      record.outcome.status = status_of_finished(record);
      finish(record, finished);
    }
  } else if (const auto* const rejection = std::get_if<Rejection>(decision_)) {
    Record& record = record_of(rejection->call_id);
    record.outcome.status = rejection->status;
    finish(record, finished);
  } else if (const auto* const release = std::get_if<Release>(decision_)) {
    Record& record = record_of(release->call_id);
    record.outcome.last_joined = release->last_rank;
    finish(record, finished);
  }
  decision_ = nullptr;
  stage_ = Stage::kNone;
  agreement_.record_completion();
}

void GroupMember::finish(Record& record, std::vector<Record*>& finished) {
  in_flight_[record.index_in_flight] = in_flight_.back();
  in_flight_[record.index_in_flight]->index_in_flight = record.index_in_flight;
  in_flight_.pop_back();
  finished.push_back(&record);
}

}  // namespace farandole
