#include "engine/group_member.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "engine/group_memory.h"
#include "engine/submission_check.h"

namespace farandole {
namespace {

int member_of(const std::vector<int>& ranks, int rank) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  CHECK(found != ranks.end(), "only members take part");
  return static_cast<int>(found - ranks.begin());
}

// Memory of ours for what the others bring; null if there is none.
std::byte* memory_for_received(Record& record, std::span<const std::int64_t> rows,
                               std::int64_t bytes_per_row) {
  record.outcome.received_rows.assign(rows.begin(), rows.end());
  std::int64_t bytes = 0;
  for (const std::int64_t count : rows) bytes += count * bytes_per_row;
  // An empty result still gets an address of its own.
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  auto* const memory = new (std::align_val_t{kHeapAlignment}, std::nothrow) std::byte[size];
  record.outcome.received = std::shared_ptr<std::byte>(memory, [](std::byte* owned) {
    ::operator delete[](owned, std::align_val_t{kHeapAlignment});
  });
  return memory;
}

CollectiveCall call_of(Record& record, const std::vector<int>& ranks) {
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
  if (submission.operation == Operation::kAlltoall && call.splits.empty()) {
    const auto members = static_cast<std::int64_t>(ranks.size());
    call.splits.assign(ranks.size(), call.rows / members);
  }
  if (row.output_rule == OutputRule::kReceived)
    call.allocate = [&record, bytes = call.row_bytes](std::span<const std::int64_t> rows) {
      return memory_for_received(record, rows, bytes);
    };
  return call;
}

// Of a step that this rank has not submitted because it has joined.
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
  return call;
}

Status status_of_finished(const Record& record) {
  const OperationRow& row = row_of(record.submission.operation);
  if (row.output_rule != OutputRule::kReceived || record.outcome.received) return {};
  const auto& rows = record.outcome.received_rows;
  return Status::stop(fmt::format(
      "no memory for the result of {}: {} rows of {} bytes; the other ranks got theirs",
      title(record.submission), std::accumulate(rows.begin(), rows.end(), std::int64_t{0}),
      row_bytes(record.submission)));
}

}  // namespace

GroupMember::GroupMember(const FormedGroup& formed, const Formation& formation,
                         std::shared_ptr<std::byte> staging, FlightRecorder& recorder,
                         const Clock& clock)
    : id_(formed.id),
      recorder_(recorder),
      clock_(clock),
      segment_(formed.segment),
      staging_(std::move(staging)),
      board_(GroupMemory(formed.segment->data(), static_cast<int>(formed.ranks.size())).board(),
             member_of(formed.ranks, formation.doorbells->rank()), formed.ranks,
             *formation.doorbells),
      agreement_(member_of(formed.ranks, formation.doorbells->rank()), formed.ranks) {
  group_.member = board_.member();
  group_.ranks = formed.ranks;
  group_.board = &board_;
  group_.staging = staging_.get();
  const auto location = formation.heap->location_of(staging_.get());
  CHECK(location, "scratch memory lies in the first segment");
  group_.staging_location = *location;
  for (const int rank : formed.ranks)
    group_.heaps.push_back(formation.peers[static_cast<std::size_t>(rank)].heap.get());

  const GroupMemory memory(formed.segment->data(), group_.members());
  Doorbells& doorbells = *formation.doorbells;
  if (group_.member > 0) {
    const int me = group_.member;
    lines_.emplace(0, Line{{memory.ring_to_coordinator(me), doorbells, formed.ranks[0]},
                           {memory.ring_from_coordinator(me), doorbells, formed.ranks[0]},
                           {}});
    return;
  }
  for (int member = 1; member < group_.members(); ++member) {
    const int rank = formed.ranks[static_cast<std::size_t>(member)];
    lines_.emplace(member, Line{{memory.ring_from_coordinator(member), doorbells, rank},
                                {memory.ring_to_coordinator(member), doorbells, rank},
                                {}});
  }
}

void GroupMember::submit(Record& record) {
  in_flight_.emplace(record.submission.name, &record);
  const Status status = agreement_.submit(signature_of(record.submission));
  CHECK(status.ok(), "the table lets a name in flight through only once");
}

bool GroupMember::advance(std::vector<Record*>& finished) {
  if (ended_) return false;
  bool moved = receive_messages(finished);
  if (ended_) return true;
  moved |= take_decisions(finished);
  moved |= run_step(finished);
  moved |= send_messages();
  return moved;
}

void GroupMember::end(const Status& status, std::vector<Record*>& finished) {
  if (ended_) return;
  ended_ = status;
  step_.reset();
  decided_.clear();
  for (const auto& [name, record] : std::exchange(in_flight_, {})) {
    record->outcome.status = Status::rebuild_group(
        fmt::format("{} cannot finish: {}", title(record->submission), status.message()));
    finished.push_back(record);
  }
}

bool GroupMember::has_unsent() const {
  return !ended_ &&
         std::ranges::any_of(lines_, [](const auto& line) { return !line.second.waiting.empty(); });
}

bool GroupMember::receive_messages(std::vector<Record*>& finished) {
  bool moved = false;
  for (auto& [member, line] : lines_) {
    while (const auto message = line.in.try_receive()) {
      moved = true;
      const Status status = agreement_.receive(member, *message);
      if (status.ok()) continue;
      end(status, finished);
      return true;
    }
  }
  return moved;
}

bool GroupMember::send_messages() {
  while (auto message = agreement_.next_message())
    lines_.at(message->to).waiting.push_back(std::move(message->bytes));
  bool moved = false;
  for (auto& [member, line] : lines_) {
    while (!line.waiting.empty() && line.out.try_send(line.waiting.front())) {
      line.waiting.pop_front();
      moved = true;
    }
  }
  return moved;
}

bool GroupMember::take_decisions(std::vector<Record*>& finished) {
  bool moved = false;
  while (auto decision = agreement_.next_decision()) {
    moved = true;
    if (auto* const step = std::get_if<Step>(&*decision)) {
      decided_.push_back(std::move(*step));
      continue;
    }
    if (const auto* const release = std::get_if<Release>(&*decision)) {
      Record& join = take_in_flight(release->name);
      join.outcome.last_joined = release->last_rank;
      finished.push_back(&join);
      continue;
    }
    const auto& refusal = std::get<Refusal>(*decision);
    Record& refused = take_in_flight(refusal.name);
    refused.outcome.status = refusal.status;
    finished.push_back(&refused);
  }
  return moved;
}

Record& GroupMember::take_in_flight(const std::string& name) {
  const auto node = in_flight_.extract(name);
  CHECK(!node.empty(), "only what is in flight here is decided");
  return *node.mapped();
}

bool GroupMember::run_step(std::vector<Record*>& finished) {
  if (!step_) {
    if (decided_.empty()) return false;
    start_step();
  }
  const Progress progress = farandole::advance(*step_);
  if (progress == Progress::kPending) return false;
  if (progress == Progress::kMoved) return true;
  step_.reset();
  if (progress == Progress::kMismatch) {
    end(Status::stop("its members entered different steps, which is a bug in Farandole"), finished);
    return true;
  }
  if (!decided_.front().joined) {
    Record& record = take_in_flight(decided_.front().name);
    record.outcome.status = status_of_finished(record);
    finished.push_back(&record);
  }
  decided_.pop_front();
  return true;
}

void GroupMember::start_step() {
  const Step& step = decided_.front();
  const StepIdentity identity{step.generation, step.sequence, step.id};
  if (step.joined) {
    step_.emplace(choose(group_, identity, call_without_data(*step.joined)));
    return;
  }
  Record& record = *in_flight_.at(step.name);
  recorder_.running(record.handle, clock_.now());
  step_.emplace(choose(group_, identity, call_of(record, group_.ranks)));
}

}  // namespace farandole
