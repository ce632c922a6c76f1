#include "engine/group_member.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "engine/group_memory.h"
#include "engine/submission_check.h"

namespace farandole {
namespace {

// Of decisions without a signature; those of signatures start at 1.
constexpr std::uint32_t kNoId = 0;

int member_of(const std::vector<int>& ranks, int rank) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  CHECK(found != ranks.end(), "only members take part");
  return static_cast<int>(found - ranks.begin());
}

// Where fresh memory is large, huge pages for it: to touch small ones costs more than to fill them.
// The memory's first page may be an allocator's as well, which does not mind.
void ask_for_huge_pages(std::byte* memory, std::size_t bytes) {
  constexpr std::size_t kPageBytes = 4096;
  if (bytes < kHugePageBytes) return;
  std::byte* const begin = memory - reinterpret_cast<std::uintptr_t>(memory) % kPageBytes;
  ::madvise(begin, static_cast<std::size_t>(memory + bytes - begin), MADV_HUGEPAGE);
}

// Memory of ours for what the others bring; null if there is none. Not from the heap: a child that
// the program forks would see it change when it is used again.
std::byte* memory_for_received(Record& record, std::span<const std::int64_t> rows,
                               std::int64_t bytes_per_row) {
  record.outcome.received_rows.assign(rows.begin(), rows.end());
  std::int64_t bytes = 0;
  for (const std::int64_t count : rows) bytes += count * bytes_per_row;
  // An empty result still gets an address of its own.
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  auto* const memory = new (std::align_val_t{kHeapAlignment}, std::nothrow) std::byte[size];
  if (memory != nullptr) ask_for_huge_pages(memory, size);
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
                         FlightRecorder& recorder, const Clock& clock)
    : id_(formed.id),
      recorder_(recorder),
      clock_(clock),
      segment_(formed.segment),
      board_(GroupMemory(formed.segment->data(), static_cast<int>(formed.ranks.size())).board(),
             member_of(formed.ranks, formation.doorbells->rank()), formed.ranks,
             *formation.doorbells),
      agreement_(member_of(formed.ranks, formation.doorbells->rank()), formed.ranks) {
  group_.member = board_.member();
  group_.ranks = formed.ranks;
  group_.board = &board_;
  group_.heap = formation.heap.get();
  for (const int rank : formed.ranks)
    group_.heaps.push_back(formation.peers[static_cast<std::size_t>(rank)].heap.get());

  const GroupMemory memory(formed.segment->data(), group_.members());
  group_.costs = memory.costs();
  for (int member = 0; member < group_.members(); ++member)
    group_.stagings.push_back(memory.staging(member));
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

void GroupMember::take_huge_pages() {
  segment_->take_huge_pages(group_.stagings[static_cast<std::size_t>(group_.member)],
                            kStagingBytes);
}

void GroupMember::submit(Record& record) {
  in_flight_.emplace(record.submission.name, &record);
  const Status status = agreement_.submit(record.name->known.signature);
  CHECK(status.ok(), "the table lets a name in flight through only once");
}

bool GroupMember::advance(std::vector<Record*>& finished) {
  if (ended_) return false;
  bool moved = receive_messages(finished);
  if (ended_) return true;
  moved |= take_decisions();
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

bool GroupMember::take_decisions() {
  bool moved = false;
  while (auto decision = agreement_.next_decision()) {
    moved = true;
    decided_.push_back(*std::move(decision));
  }
  return moved;
}

bool GroupMember::run_step(std::vector<Record*>& finished) {
  if (!step_) {
    if (decided_.empty()) return false;
    step_.emplace(make_step(decided_.front()));
  }
  const Progress progress = farandole::advance(*step_);
  if (progress == Progress::kPending) return false;
  if (progress == Progress::kMoved) return true;
  step_.reset();
  if (progress == Progress::kMismatch) {
    end(Status::stop("its members entered different steps, which is a bug in Farandole"), finished);
    return true;
  }
  finish_decision(finished);
  decided_.pop_front();
  return true;
}

// What moves no data is entered like a barrier: in the end all have heard of it.
CollectiveStep GroupMember::make_step(const Decision& decision) {
  const auto* const step = std::get_if<Step>(&decision);
  if (step == nullptr)
    return std::visit(
        [this](const auto& other) -> CollectiveStep {
          return Barrier(group_, {other.generation, other.sequence, kNoId});
        },
        decision);
  const StepIdentity identity{step->generation, step->sequence, step->id};
  if (step->joined) return choose(group_, identity, call_without_data(*step->joined));
  Record& record = *in_flight_.at(step->name);
  recorder_.running(record.handle, clock_.now());
  return choose(group_, identity, call_of(record, group_.ranks));
}

void GroupMember::finish_decision(std::vector<Record*>& finished) {
  const Decision& decision = decided_.front();
  const auto* const step = std::get_if<Step>(&decision);
  if (std::holds_alternative<Pass>(decision) || (step != nullptr && step->joined)) return;
  const auto node = in_flight_.extract(
      std::visit([](const auto& what) -> const std::string& { return what.name; }, decision));
  CHECK(!node.empty(), "only what is in flight here is decided");
  Record& record = *node.mapped();
  if (const auto* const refusal = std::get_if<Refusal>(&decision))
    record.outcome.status = refusal->status;
  else if (const auto* const release = std::get_if<Release>(&decision))
    record.outcome.last_joined = release->last_rank;
  else
    record.outcome.status = status_of_finished(record);
  finished.push_back(&record);
}

}  // namespace farandole
