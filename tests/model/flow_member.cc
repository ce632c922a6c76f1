#include "flow_member.h"

namespace farandole::model {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
// After a call has failed, the owner of exposed memory stores this value in the memory.
constexpr Value kValueAfterFailure = 7;

// The value of the closing word while a member proposes to run no step of this or a later sequence.
// When the group is closed, the value is 2 higher.
constexpr Value closing_proposal(std::uint32_t sequence) { return Value{sequence} << 2 | 1; }

}  // namespace

template <std::uint32_t Slots>
BoardWithBug<Slots>::BoardWithBug(FlowJob& job, int member)
    : ModelBoard<Slots>(job.board_memory(), member, job.ranks(), job.doorbells(member)),
      job_(&job) {}

template <std::uint32_t Slots>
void BoardWithBug<Slots>::publish_phase(std::uint32_t phase) {
  Execution& execution = job_->arena().execution();
  execution.mute(job_->has(Bug::kPhaseWithoutBell));
  ModelBoard<Slots>::publish_phase(phase);
  execution.mute(false);
}

template <std::uint32_t Slots>
bool BoardWithBug<Slots>::all_entered() {
  begin_check();
  return ModelBoard<Slots>::all_entered();
}

template <std::uint32_t Slots>
bool BoardWithBug<Slots>::all_reached(std::uint32_t phase) {
  if (job_->has(Bug::kConsumesWithoutWaiting)) return true;
  if (job_->has(Bug::kExposerDoesNotWait) && phase == job_->flow().rounds) return true;
  if (phase > 0 &&
      job_->has(phase % 2 == 0 ? Bug::kReducesWithoutWaiting : Bug::kFetchesWithoutWaiting))
    return true;
  begin_check();
  return ModelBoard<Slots>::all_reached(phase);
}

template <std::uint32_t Slots>
bool BoardWithBug<Slots>::any_member_gone() const {
  return !job_->has(Bug::kPublishesAfterTheExposerLeft) && ModelBoard<Slots>::any_member_gone();
}

template <std::uint32_t Slots>
ModelAtomics::Atomic<std::uint64_t>& BoardWithBug<Slots>::closing_word() const {
  using Board = ModelBoard<Slots>;
  auto* const lines = reinterpret_cast<typename Board::Line*>(job_->board_memory());
  const auto count = static_cast<std::uint32_t>(this->members()) * Slots;
  return reinterpret_cast<typename Board::Closing*>(lines + count)->word;
}

template <std::uint32_t Slots>
bool BoardWithBug<Slots>::may_run() {
  if (job_->has(Bug::kRunsClosedStep)) return true;
  const bool planted = job_->has(Bug::kRunsProposedStep) || job_->has(Bug::kProposalStays);
  if (!planted) return ModelBoard<Slots>::may_run();
  const Value closing_value = closing_word().load(std::memory_order_seq_cst);
  if (closing_value == closing_proposal(this->sequence())) return job_->has(Bug::kRunsProposedStep);
  return ModelBoard<Slots>::may_run();
}

template <std::uint32_t Slots>
bool BoardWithBug<Slots>::try_close() {
  const bool planted = job_->has(Bug::kClosesWithoutSecondCheck) || job_->has(Bug::kProposalStays);
  if (!planted) return ModelBoard<Slots>::try_close();
  if (job_->has(Bug::kClosesWithoutSecondCheck) && this->all_entered()) return false;
  Value open = 0;
  closing_word().compare_exchange_strong(open, closing_proposal(this->sequence()),
                                         std::memory_order_seq_cst);
  if (open == closing_proposal(this->sequence()) + 2) return true;
  if (job_->has(Bug::kProposalStays) && this->all_entered()) return false;
  Value proposed = closing_proposal(this->sequence());
  closing_word().compare_exchange_strong(proposed, proposed + 2, std::memory_order_seq_cst);
  return true;
}

template <std::uint32_t Slots>
FlowMember<Slots>::FlowMember(FlowJob& job, int number)
    : job_(&job),
      doorbells_(&job.doorbells(number)),
      number_(number),
      board_(job, number),
      running_board_(std::make_shared<BoardWithBug<Slots>>(job, number)),
      sequence_(sequence_of(1)) {}

template <std::uint32_t Slots>
auto FlowMember<Slots>::sequence_of(std::uint32_t step) const -> Sequence {
  const Flow& flow = job_->flow();
  const bool differs = step == flow.misprediction_at && number_ % 2 == 1;
  const EntryBarrierType entry_barrier(
      *job_, board(), {.sequence = step, .id = identity_of(differs ? 1000 + step : step)});
  if (flow.algorithm == FlowAlgorithm::kRounds) return BasicRounds<EntryBarrierType>(entry_barrier);
  if (flow.algorithm == FlowAlgorithm::kTwoShots)
    return BasicTwoShots<EntryBarrierType>(entry_barrier);
  return Barrier{entry_barrier};
}

template <std::uint32_t Slots>
void FlowMember<Slots>::write_key(ByteWriter& key) const {
  key.put(number_);
  key.put(mode_);
  key.put(ending_);
  for (const bool flag : {any_member_left_, any_member_died_, prepared_, read_after_give_back_})
    key.put(flag);
  for (const auto value :
       {ticket_, step_, hook_calls_, advances_, board_.generation(), board_.sequence()})
    key.put(value);
  board_.write_key(key);
  for (const auto& window : memory_)
    for (const Value value : window) key.put(value);
}

template <std::uint32_t Slots>
void FlowMember<Slots>::run() {
  board() = board_;
  switch (mode_) {
    case Mode::kBegin:
      begin();
      break;
    case Mode::kRound:
      run_round();
      break;
    case Mode::kPrepare:
      ticket_ = doorbells_->prepare_sleep();
      prepared_ = true;
      mode_ = Mode::kRound;
      break;
    case Mode::kSleep:
      doorbells_->sleep(ticket_, {});
      prepared_ = false;
      wake_up();
      break;
    case Mode::kOver:
      break;
  }
  board_ = board();
}

template <std::uint32_t Slots>
void FlowMember<Slots>::wake_up() {
  if (prepared_) doorbells_->cancel_sleep();
  prepared_ = false;
  ticket_ = 0;
  mode_ = Mode::kRound;
}

template <std::uint32_t Slots>
void FlowMember<Slots>::begin() {
  fill_memory(1);
  mode_ = Mode::kRound;
}

// Mirrors one round of the engine: checks whether members have died or left, advances the step, and
// sleeps if nothing can be done. After another member has died or left, this member finishes its
// step if it can, and then ends.
template <std::uint32_t Slots>
void FlowMember<Slots>::run_round() {
  if (ending_ == Ending::kAbandoned) return wait_for_writers();
  if (step_ > job_->options().steps) return end();
  check_whether_to_end();
  if (mode_ == Mode::kOver) return;
  const Progress progress = advance();
  if (progress == Progress::kPending) {
    require(job_->arena(), ending_ == Ending::kNone || !any_member_left_ || any_member_died_,
            "a member has left before it had completed a step that all had entered");
    if (any_member_died_) {
      board().abandon();
      ending_ = Ending::kAbandoned;
      return continue_or_sleep(true);
    }
    return continue_or_sleep(false);
  }
  if (progress == Progress::kAdvanced) ++advances_;
  if (progress == Progress::kDone) finish_step();
  if (mode_ == Mode::kOver) return;
  continue_or_sleep(true);
  if (progress != Progress::kMisprediction) return;
  require(job_->arena(), step_ == job_->flow().misprediction_at, "a wrong identity was read");
  end();
}

template <std::uint32_t Slots>
void FlowMember<Slots>::continue_or_sleep(bool has_advanced) {
  if (has_advanced)
    wake_up();
  else if (!job_->options().spins)
    mode_ = prepared_ ? Mode::kSleep : Mode::kPrepare;
}

// After a death or a leave: a step that not all members have entered fails on all members; any
// other step runs to its end.
template <std::uint32_t Slots>
void FlowMember<Slots>::check_whether_to_end() {
  const Options& options = job_->options();
  const bool quits = options.quitter == number_;
  any_member_died_ = options.mortal >= 0 && doorbells_->closed_by().has_value();
  any_member_left_ = options.quitter >= 0 && !quits && doorbells_->has_left(options.quitter);
  const bool wants_to_end = quits && job_->wants_to_end.await(0) != 0;
  if (ending_ != Ending::kNone || !(any_member_died_ || any_member_left_ || wants_to_end)) return;
  const bool entered = board().generation() != 0 && board().sequence() == step_;
  if (!entered || board().try_close()) return fail();
  ending_ = Ending::kKept;
}

// Fails the current step and all later ones on this member.
template <std::uint32_t Slots>
void FlowMember<Slots>::fail() {
  const Ghost& outcome = job_->outcomes[step_];
  if (job_->options().mortal < 0) {
    require(job_->arena(), outcome.get() != 1, "a step that a member completed has failed");
    outcome.set(2);
  }
  if (job_->options().quitter == number_) {
    job_->arena().execution().mute(job_->options().spins);
    doorbells_->leave("");
    job_->arena().execution().mute(false);
  }
  get_memory_back();
  end();
}

template <std::uint32_t Slots>
void FlowMember<Slots>::wait_for_writers() {
  // This member has to wait only if other members write to its memory.
  if (is_two_shots() && exposes() && !job_->has(Bug::kReturnsWithoutFence) &&
      any_member_may_write())
    return continue_or_sleep(false);
  get_memory_back();
  end();
}

template <std::uint32_t Slots>
bool FlowMember<Slots>::any_member_may_write() const {
  const Options& options = job_->options();
  for (int member = 0; member < board().members(); ++member) {
    if (member == number_ || !board().may_still_write(member)) continue;
    const bool is_dead =
        member == options.mortal && (job_->has(Bug::kDeathWhileRunning) ||
                                     job_->reaped[static_cast<std::size_t>(member)].await(0) != 0);
    if (!is_dead) return true;
  }
  return false;
}

template <std::uint32_t Slots>
void FlowMember<Slots>::end() {
  mode_ = Mode::kOver;
}

// The call has failed, so the owner may store into its exposed memory again.
template <std::uint32_t Slots>
void FlowMember<Slots>::get_memory_back() {
  const int slices = is_two_shots() ? board().members() : 1;
  for (std::int64_t window = 0; exposes() && window < job_->flow().rounds; ++window)
    for (int slice = 0; slice < slices; ++slice)
      job_->exposed_cell(number_, window, slice).store(kValueAfterFailure, kRelaxed);
  job_->returned[static_cast<std::size_t>(number_)].set(1);
}

template <std::uint32_t Slots>
Progress FlowMember<Slots>::advance() {
  if (auto* const rounds = std::get_if<BasicRounds<EntryBarrierType>>(&sequence_))
    return rounds->advance(*this);
  if (auto* const shots = std::get_if<BasicTwoShots<EntryBarrierType>>(&sequence_))
    return shots->advance(*this);
  EntryBarrierType& entry_barrier = std::get<Barrier>(sequence_).entry_barrier;
  if (!entry_barrier.has_entered()) enter(entry_barrier);
  return entry_barrier.check_arrivals();
}

template <std::uint32_t Slots>
void FlowMember<Slots>::expect(Value actual, Value expected, const char* what_broke) const {
  require(job_->arena(), actual == expected, what_broke);
}

template <std::uint32_t Slots>
void FlowMember<Slots>::expect_unless_given_back(Value actual, Value expected,
                                                 const char* what_broke) {
  if (actual == kValueAfterFailure)
    read_after_give_back_ = true;
  else
    expect(actual, expected, what_broke);
}

template <std::uint32_t Slots>
void FlowMember<Slots>::stage(std::int64_t window) {
  ++hook_calls_;
  if (exposes()) return;
  const Value value = job_->input_value(number_, step_, window);
  for (int slice = 0; is_two_shots() && slice < board().members(); ++slice)
    expect(own_memory(window, slice), value, "an input was overwritten before it was staged");
  if (job_->flow().is_inline)
    ModelAtomics::write_bytes(board().own_inline_payload(step_),
                              reinterpret_cast<const std::byte*>(&value), sizeof(value));
  else
    job_->copy_cell(number_, step_, window).store(value, kRelaxed);
  // In the shipped layout, a slice of one window may lie where another window has its copies.
  if (is_two_shots()) job_->result_cell(number_, step_, window).store(value, kRelaxed);
}

template <std::uint32_t Slots>
void FlowMember<Slots>::enter(EntryBarrierType& entry_barrier) {
  ++hook_calls_;
  const std::uint64_t input = exposes() ? static_cast<std::uint64_t>(number_) : kNoLocation;
  entry_barrier.enter(0, input, is_two_shots() ? input : kNoLocation);
  if (job_->has(Bug::kEntersEarly) && step_ < job_->options().steps) enter_next_step();
  if (job_->has(Bug::kWritesEarly)) write_early();
}

template <std::uint32_t Slots>
void FlowMember<Slots>::enter_next_step() {
  BoardWithBug<Slots> next_board = board();
  next_board.enter(1, step_ + 1, {.identity = identity_of(step_ + 1), .declared_count = 0});
}

// A planted bug: writes to other members' memory before these members have entered.
template <std::uint32_t Slots>
void FlowMember<Slots>::write_early() {
  for (int member = 0; member < board().members(); ++member)
    if (member != number_ && job_->exposes(member))
      job_->exposed_cell(member, 0, number_).store(job_->input_value(member, step_, 0), kRelaxed);
}

template <std::uint32_t Slots>
std::optional<std::int64_t> FlowMember<Slots>::on_all_arrived() {
  ++hook_calls_;
  require(job_->arena(), step_ != job_->flow().misprediction_at, "a misprediction was not seen");
  return job_->flow().rounds;
}

template <std::uint32_t Slots>
bool FlowMember<Slots>::consume(std::int64_t round) {
  ++hook_calls_;
  for (int member = 0; member < board().members(); ++member) {
    if (member == number_) continue;
    Value actual = 0;
    if (job_->exposes(member))
      actual = job_->exposed_cell(member, round, 0).load(kRelaxed);
    else if (job_->flow().is_inline)
      ModelAtomics::read_bytes(reinterpret_cast<std::byte*>(&actual),
                               board().inline_payload(member), sizeof(actual));
    else
      actual = job_->copy_cell(member, step_, round).load(kRelaxed);
    expect_unless_given_back(actual, job_->input_value(member, step_, round),
                             "a wrong part was taken");
  }
  return true;
}

template <std::uint32_t Slots>
bool FlowMember<Slots>::reduce(std::int64_t window) {
  ++hook_calls_;
  const int members = board().members();
  for (int member = 0; member < members; ++member) {
    Value actual = 0;
    if (job_->exposes(member))
      actual = job_->exposed_cell(member, window, number_).load(kRelaxed);
    else if (member == number_)
      actual = own_memory(window, number_);
    else
      actual = job_->copy_cell(member, step_, window).load(kRelaxed);
    expect_unless_given_back(actual, job_->input_value(member, step_, window),
                             "a wrong copy was reduced");
  }
  const Value sum = read_after_give_back_ ? kValueAfterFailure : job_->input_sum(step_, window);
  for (int member = 0; member < members; ++member)
    if (job_->exposes(member)) job_->exposed_cell(member, window, number_).store(sum, kRelaxed);
  if (!exposes()) own_memory(window, number_) = sum;
  if (!job_->all_expose()) job_->result_cell(number_, step_, window).store(sum, kRelaxed);
  return true;
}

template <std::uint32_t Slots>
void FlowMember<Slots>::fetch(std::int64_t window) {
  ++hook_calls_;
  if (exposes()) return;
  for (int member = 0; member < board().members(); ++member) {
    if (member == number_) continue;
    const Value actual = job_->result_cell(member, step_, window).load(kRelaxed);
    expect_unless_given_back(actual, job_->input_sum(step_, window), "a wrong result was fetched");
    own_memory(window, member) = actual;
  }
}

template <std::uint32_t Slots>
Value FlowMember<Slots>::result_in_memory(std::int64_t window, int slice) {
  return exposes() ? job_->read_uninterleaved(job_->exposed_cell(number_, window, slice))
                   : own_memory(window, slice);
}

// The owner of the memory checks the result and stores its next input at once.
template <std::uint32_t Slots>
void FlowMember<Slots>::finish_step() {
  require(job_->arena(), !read_after_give_back_,
          "a step was completed with memory that was given back");
  if (job_->options().quitter >= 0 && job_->options().mortal < 0) {
    const Ghost& outcome = job_->outcomes[step_];
    require(job_->arena(), outcome.get() != 2, "a step was completed that failed somewhere");
    outcome.set(1);
  }
  if (is_two_shots())
    for (std::int64_t window = 0; window < job_->flow().rounds; ++window)
      for (int slice = 0; slice < board().members(); ++slice)
        expect(result_in_memory(window, slice), job_->input_sum(step_, window), "a wrong sum");
  ++step_;
  hook_calls_ = 0;
  advances_ = 0;
  if (ending_ != Ending::kNone) return fail();
  if (step_ > job_->options().steps) return;
  fill_memory(step_);
  sequence_ = sequence_of(step_);
}

template <std::uint32_t Slots>
void FlowMember<Slots>::fill_memory(std::uint32_t step) {
  const int slices = is_two_shots() ? board().members() : 1;
  for (std::int64_t window = 0; window < job_->flow().rounds; ++window) {
    for (int slice = 0; slice < slices; ++slice) {
      const Value value = job_->input_value(number_, step, window);
      if (exposes())
        job_->exposed_cell(number_, window, slice).store(value, kRelaxed);
      else if (is_two_shots())
        own_memory(window, slice) = value;
    }
  }
}

template class FlowMember<1>;
template class FlowMember<2>;

}  // namespace farandole::model
