#include "launcher/stall_reports.h"

#include <chrono>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <variant>

#include "base/format.h"
#include "base/rank_names.h"
#include "base/visible_text.h"
#include "diagnosis/worker_report.h"
#include "nodes/roll_call.h"

namespace farandole {
namespace {

// A launcher answers within milliseconds, unless it is stopped or its host is overloaded.
constexpr auto kAnswerTimeout = std::chrono::seconds(10);

constexpr auto kIntervalWithoutWarnings = std::chrono::milliseconds(2500);

std::string advice_to_install(const std::vector<int>& ranks) {
  return format_text("  install py-spy (`pip install py-spy`) to see here what {} {}",
                     ranks_text(ranks), ranks.size() == 1 ? "does" : "do");
}

}  // namespace

void StallReports::begin(const NodeLayout& layout, const OtherNodes& others, Workers workers,
                         TimePoint now) {
  layout_ = layout;
  others_ = others;
  workers_ = std::move(workers);
  last_check_ = now;
}

std::optional<TimePoint> StallReports::next_check() const {
  // Even without warnings, node 0 asks the other nodes, because `farandole status` shows the
  // answers.
  if (layout_.node != 0 || (!watch_.is_on() && others_.link == nullptr)) return std::nullopt;
  return last_check_ + (watch_.is_on() ? watch_.interval() : kIntervalWithoutWarnings);
}

void StallReports::check(TimePoint now) {
  last_check_ = now;
  if (others_.link == nullptr) return show_stalls(workers_.of_this_node(), now);
  ask_other_nodes(now);
}

// Does not repeat a question while answers to it are missing.
void StallReports::ask_other_nodes(TimePoint now) {
  if (answers_.empty()) {
    answers_.resize(static_cast<std::size_t>(layout_.size()));
    missing_answers_ = 0;
    for (int node = 1; node < layout_.nodes(); ++node)
      if (others_.link->is_connected(node))
        missing_answers_ += layout_.workers[static_cast<std::size_t>(node)];
    asked_at_ = now;
    others_.link->tell(WorkersWanted());
    show_stalls_if_complete(now);
  } else if (now >= asked_at_ + kAnswerTimeout &&
             !std::exchange(has_shown_missing_reports_, true)) {
    const auto nodes_without_answer = silent_nodes();
    show_(format_text(
        "the {} of {} {} not answered for {} s, so it is unknown which ranks wait for which; "
        "is the host overloaded, or the launcher stopped?",
        nodes_without_answer.size() == 1 ? "launcher" : "launchers",
        node_list_text({nodes_without_answer.begin(), nodes_without_answer.end()}),
        nodes_without_answer.size() == 1 ? "has" : "have",
        std::chrono::duration_cast<std::chrono::seconds>(now - asked_at_).count()));
  }
}

std::vector<std::uint32_t> StallReports::silent_nodes() const {
  std::vector<std::uint32_t> nodes_without_answer;
  std::size_t rank = 0;
  for (int node = 0; node < layout_.nodes(); ++node) {
    bool has_answered = true;
    for (int i = 0; i < layout_.workers[static_cast<std::size_t>(node)]; ++i)
      has_answered = answers_[rank++].has_value() && has_answered;
    if (node != layout_.node && !has_answered && others_.link->is_connected(node))
      nodes_without_answer.push_back(static_cast<std::uint32_t>(node));
  }
  return nodes_without_answer;
}

void StallReports::handle(const NodeMessage& message, TimePoint now) {
  if (std::holds_alternative<WorkersWanted>(message)) {
    std::uint32_t rank = static_cast<std::uint32_t>(layout_.first_rank());
    for (const WatchedWorker& worker : workers_.of_this_node()) {
      const Bytes report = encode_worker(worker, now);
      others_.link->tell(
          WorkerReport{rank++, {reinterpret_cast<const char*>(report.data()), report.size()}});
    }
  }
  if (const auto* report = std::get_if<WorkerReport>(&message)) store_report(*report, now);
  if (const auto* wanted = std::get_if<StacksWanted>(&message))
    request_own_stacks({wanted->ranks.begin(), wanted->ranks.end()});
  if (const auto* stack = std::get_if<StackReport>(&message)) show_stack_lines(*stack);
}

void StallReports::store_report(const WorkerReport& report, TimePoint now) {
  const auto bytes = std::as_bytes(std::span(report.report));
  auto worker = decode_worker(bytes, now);
  const bool is_of_other_node = report.rank >= static_cast<std::uint32_t>(layout_.local_size()) &&
                                report.rank < answers_.size();
  if (!worker || !is_of_other_node) return;
  others_.reports->store(static_cast<int>(report.rank), bytes, now);
  if (!std::exchange(answers_[report.rank], std::move(worker))) --missing_answers_;
  show_stalls_if_complete(now);
}

void StallReports::show_stalls_if_complete(TimePoint now) {
  if (missing_answers_ > 0) return;
  has_shown_missing_reports_ = false;
  const WatchedWorker lost_worker{.host = "?", .report = {}, .end = "is lost"};
  std::vector<WatchedWorker> all_workers = workers_.of_this_node();
  for (std::size_t slot = all_workers.size(); slot < answers_.size(); ++slot)
    all_workers.push_back(answers_[slot] ? *std::move(answers_[slot]) : lost_worker);
  answers_.clear();
  show_stalls(all_workers, now);
}

std::vector<int> StallReports::slots() const {
  std::vector<int> slots = workers_.slots_by_rank ? workers_.slots_by_rank() : std::vector<int>();
  if (!slots.empty()) return slots;
  slots.resize(static_cast<std::size_t>(layout_.size()));
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

void StallReports::show_stalls(const std::vector<WatchedWorker>& by_slot, TimePoint now) {
  if (!watch_.is_on()) return;
  std::vector<WatchedWorker> workers;
  for (const int slot : slots()) workers.push_back(by_slot.at(static_cast<std::size_t>(slot)));
  const auto report = watch_.tick(workers, now);
  for (const auto& line : report.lines) show_(line);
  if (!report.unexplained_ranks.empty()) request_stacks(report.unexplained_ranks);
}

void StallReports::request_stacks(const std::vector<int>& ranks) {
  request_own_stacks(ranks);
  StacksWanted stacks_of_others;
  const std::vector<int> slots = this->slots();
  for (const int rank : ranks)
    if (slots.at(static_cast<std::size_t>(rank)) >= layout_.local_size())
      stacks_of_others.ranks.push_back(static_cast<std::uint32_t>(rank));
  if (!stacks_of_others.ranks.empty()) others_.link->tell(stacks_of_others);
}

// Returns the local rank of a rank; empty if the rank is on another node.
std::optional<std::size_t> StallReports::local_rank_of(int rank) const {
  const std::vector<int> slots = this->slots();
  if (rank < 0 || static_cast<std::size_t>(rank) >= slots.size()) return std::nullopt;
  const int local_rank = slots[static_cast<std::size_t>(rank)] - layout_.first_rank();
  const bool is_own = local_rank >= 0 && local_rank < layout_.local_size();
  return is_own ? std::optional(static_cast<std::size_t>(local_rank)) : std::nullopt;
}

// `ranks` may include ranks of other nodes. The launchers of those nodes capture the stacks of
// these ranks.
void StallReports::request_own_stacks(const std::vector<int>& ranks) {
  std::vector<int> own_ranks;
  for (const int rank : ranks)
    if (local_rank_of(rank)) own_ranks.push_back(rank);
  if (own_ranks.empty()) return;
  if (!stacks_.is_available()) {
    return pass_on({{advice_to_install(own_ranks)}});
  }
  const auto workers = workers_.of_this_node();
  for (const int rank : own_ranks) stacks_.request({rank, workers.at(*local_rank_of(rank)).pid});
}

void StallReports::show_stack(TimePoint now) {
  const auto stack = stacks_.advance(now);
  if (!stack) return;
  StackReport report;
  if (!stack->lines.empty()) {
    // All workers of this node are on one host, so the host of the first worker is also the host of
    // all others.
    report.lines.push_back(
        format_text("rank {} ({}, pid {}) is here, innermost call first:", stack->worker.rank,
                    workers_.of_this_node().front().host, stack->worker.pid));
    report.lines.insert(report.lines.end(), stack->lines.begin(), stack->lines.end());
  } else if (!std::exchange(has_reported_failure_, true)) {
    report.lines.push_back(
        format_text("py-spy could not look at rank {}: {}", stack->worker.rank, stack->failure));
  }
  if (!report.lines.empty()) pass_on(report);
}

void StallReports::pass_on(const StackReport& stack) {
  if (layout_.node == 0)
    show_stack_lines(stack);
  else
    others_.link->tell(stack);
}

void StallReports::show_stack_lines(const StackReport& stack) {
  for (const auto& line : stack.lines) show_(escape_controls(line));
}

}  // namespace farandole
