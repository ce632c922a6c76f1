#include "job.h"

#include <numeric>

#include "base/format.h"

namespace farandole::model {
namespace {

std::vector<Ghost> ghosts(Arena& arena, const char* name, std::size_t count) {
  std::vector<Ghost> created;
  for (std::size_t i = 0; i < count; ++i)
    created.emplace_back(arena, format_text("{}[{}]", name, i));
  return created;
}

std::size_t board_bytes(const Options& options) {
  return options.bug == Bug::kOneSlot ? ModelBoard<1>::bytes_needed(options.members)
                                      : ModelBoard<2>::bytes_needed(options.members);
}

void set_store_bugs(Bug bug, StoreBugs& store_bugs) {
  store_bugs.weak(Site::kWord) = bug == Bug::kWeakWord;
  store_bugs.weak(Site::kAsleep) = bug == Bug::kWeakAsleep;
  store_bugs.weak(Site::kPhase) = bug == Bug::kWeakPhase;
  store_bugs.weak(Site::kAwaited) = bug == Bug::kWeakAwaited;
  store_bugs.phase_before_data = bug == Bug::kPhaseBeforeData;
  store_bugs.word_before_payload = bug == Bug::kWordBeforePayload;
  store_bugs.split_word = bug == Bug::kSplitWord;
}

}  // namespace

Job::Job(const Options& options)
    : options_(options),
      bells_(arena_.allocate(ModelDoorbells::bytes_needed(options.members))),
      board_(arena_.allocate(board_bytes(options))),
      reaped(ghosts(arena_, "reaped", static_cast<std::size_t>(options.members))),
      inbox(ghosts(arena_, "inbox", static_cast<std::size_t>(options.members))),
      reports(ghosts(arena_, "report", static_cast<std::size_t>(options.members))),
      progress(ghosts(arena_, "progress", static_cast<std::size_t>(options.members))),
      completed(ghosts(arena_, "completed", options.steps + 1)),
      rolled_back(ghosts(arena_, "rolled back", options.steps + 1)),
      stop(arena_, "stop"),
      answer(arena_, "answer"),
      submitted(arena_, "submitted"),
      wants_to_end(arena_, "wants to end"),
      returned(ghosts(arena_, "returned", static_cast<std::size_t>(options.members))),
      outcomes(ghosts(arena_, "outcome", options.steps + 2)) {
  set_store_bugs(options.bug, arena_.store_bugs);
  for (int member = 0; member < options.members; ++member)
    doorbells_.emplace_back(bells_, member, options.members);
  mark_doorbells();
  if (slots() == 1)
    mark_board<1>();
  else
    mark_board<2>();
}

void Job::mark_doorbells() {
  const auto* header = reinterpret_cast<ModelDoorbells::Header*>(bells_);
  arena_.mark(&header->closing, "closing");
  arena_.mark(&header->leavers, "leavers");
  for (int member = 0; member < options_.members; ++member) {
    const auto& line = bell_line(member);
    arena_.mark(&line.bell, format_text("bell[{}]", member), Site::kBell);
    arena_.mark(&line.asleep, format_text("asleep[{}]", member), Site::kAsleep);
    arena_.mark(&line.left, format_text("left[{}]", member));
    arena_.mark(&line.reason_bytes, format_text("reason bytes[{}]", member));
    arena_.mark(&line.closing_reason_bytes, format_text("closing reason bytes[{}]", member));
  }
}

template <std::uint32_t Slots>
void Job::mark_board() {
  using Board = ModelBoard<Slots>;
  const auto members = static_cast<std::uint32_t>(options_.members);
  const auto* lines = reinterpret_cast<typename Board::Line*>(board_);
  const auto mark = [&](const void* place, const std::string& name, Site site,
                        std::uint32_t member) {
    arena_.mark(place, format_text("{}[{}]", name, member), site, static_cast<int>(member));
  };
  for (std::uint32_t member = 0; member < members; ++member) {
    for (std::uint32_t slot = 0; slot < Slots; ++slot) {
      const auto& line = lines[member * Slots + slot];
      mark(&line.word, format_text("slot {} word", slot), Site::kWord, member);
      mark(&line.identity, format_text("slot {} identity", slot), Site::kPayload, member);
      mark(&line.declared_count, format_text("slot {} declared count", slot), Site::kPayload,
           member);
      mark(&line.input, format_text("slot {} input", slot), Site::kPayload, member);
      mark(&line.output, format_text("slot {} output", slot), Site::kPayload, member);
      mark(&line.phase, format_text("slot {} phase", slot), Site::kPhase, member);
      if (any_member_may_end())
        mark(&line.abandoned, format_text("slot {} abandoned", slot), Site::kOther, member);
    }
  }
  // If no member can die or quit, this word never changes and needs no interleaving.
  const auto* closing = reinterpret_cast<const typename Board::Closing*>(lines + members * Slots);
  if (any_member_may_end())
    arena_.mark(&closing->word, "closing of the group");
  else
    arena_.mark_constant(&closing->word, "closing of the group", 0);
  for (std::uint32_t member = 0; member < members; ++member)
    mark(&awaited(static_cast<int>(member)), "awaited", Site::kAwaited, member);
}

ModelAtomics::Atomic<std::uint32_t>& Job::awaited(int member) {
  std::byte* const end = board_ + board_bytes(options_);
  auto* const all_waiting = reinterpret_cast<ModelBoard<kSlots>::Waiting*>(end) - options_.members;
  return all_waiting[member].awaited;
}

ModelDoorbells::Line& Job::bell_line(int member) {
  auto* lines = reinterpret_cast<ModelDoorbells::Line*>(bells_ + sizeof(ModelDoorbells::Header));
  return lines[member];
}

std::vector<int> Job::ranks() const {
  std::vector<int> all_ranks(static_cast<std::size_t>(options_.members));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  return all_ranks;
}

void Job::ring_all() {
  for (int member = 0; member < options_.members; ++member) {
    auto& bell = bell_line(member).bell;
    bell.fetch_add(1, std::memory_order_seq_cst);
    ModelAtomics::futex_wake(bell);
  }
}

Value Job::identity(int member, std::uint32_t generation, std::uint32_t step) const {
  const bool differs =
      generation == 1 && step >= options_.identities_differ_from && member % 2 == 1;
  return identity_of(differs ? 1000 + step : step);
}

std::int64_t Job::payload(int member, std::uint32_t generation, std::uint32_t step) const {
  return 100 * std::int64_t{generation} + 10 * std::int64_t{step} + member + 1;
}

std::int64_t Job::sum(std::uint32_t generation, std::uint32_t step) const {
  std::int64_t total = 0;
  for (int member = 0; member < options_.members; ++member)
    total += payload(member, generation, step);
  return total;
}

}  // namespace farandole::model
