#include "flow_member.h"

namespace farandole::model {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
// In memory that its owner has back, after a call that failed.
constexpr Value kGivenBack = 7;

}  // namespace

template <std::uint32_t Slots>
PlantedBoard<Slots>::PlantedBoard(FlowJob& job, int member)
    : ModelBoard<Slots>(job.board_memory(), member, job.ranks(), job.doorbells(member)),
      job_(&job) {}

template <std::uint32_t Slots>
void PlantedBoard<Slots>::publish_phase(std::uint32_t phase) {
  Execution& execution = job_->arena().execution();
  execution.mute(job_->has(Bug::kPhaseWithoutBell));
  ModelBoard<Slots>::publish_phase(phase);
  execution.mute(false);
}

template <std::uint32_t Slots>
bool PlantedBoard<Slots>::all_reached(std::uint32_t phase) const {
  if (job_->has(Bug::kTakesUnseen)) return true;
  if (job_->has(Bug::kLenderDoesNotWait) && phase == job_->flow().rounds) return true;
  if (phase > 0 && job_->has(phase % 2 == 0 ? Bug::kReducesUnseen : Bug::kFetchesUnseen))
    return true;
  return ModelBoard<Slots>::all_reached(phase);
}

template <std::uint32_t Slots>
bool PlantedBoard<Slots>::somebody_is_gone() const {
  return !job_->has(Bug::kShowsWhatIsSpoiled) && ModelBoard<Slots>::somebody_is_gone();
}

template <std::uint32_t Slots>
FlowMember<Slots>::FlowMember(FlowJob& job, int number)
    : job_(&job),
      doorbells_(&job.doorbells(number)),
      number_(number),
      board_(job, number),
      live_(std::make_shared<PlantedBoard<Slots>>(job, number)),
      sequence_(sequence_of(1)) {}

template <std::uint32_t Slots>
auto FlowMember<Slots>::sequence_of(std::uint32_t step) const -> Sequence {
  const Flow& flow = job_->flow();
  const bool differs = step == flow.surprise_at && number_ % 2 == 1;
  const Way way(*job_, board(),
                {.sequence = step, .id = identity_of(differs ? 1000 + step : step)});
  if (flow.shape == Shape::kRounds) return BasicRounds<Way>(way);
  if (flow.shape == Shape::kTwoShots) return BasicTwoShots<Way>(way);
  return Barrier{way};
}

template <std::uint32_t Slots>
void FlowMember<Slots>::write_key(ByteWriter& key) const {
  key.put(number_);
  key.put(mode_);
  key.put(prepared_);
  key.put(spoiled_);
  for (const auto value : {ticket_, step_, hooks_, moves_, board_.generation(), board_.sequence()})
    key.put(value);
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
    case Mode::kTurn:
      turn();
      break;
    case Mode::kPrepare:
      ticket_ = doorbells_->prepare_sleep();
      prepared_ = true;
      mode_ = Mode::kTurn;
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
  mode_ = Mode::kTurn;
}

template <std::uint32_t Slots>
void FlowMember<Slots>::begin() {
  fill_memory(1);
  mode_ = Mode::kTurn;
}

// As the engine's: looks at everything, and sleeps when nothing can be done. When somebody has died
// it finishes what it can before it ends.
template <std::uint32_t Slots>
void FlowMember<Slots>::turn() {
  if (step_ > job_->options().steps) return end();
  const bool closed = job_->options().mortal >= 0 && doorbells_->closed_by();
  const Progress progress = advance();
  if (progress == Progress::kPending) {
    if (closed) {
      get_memory_back();
      return end();
    }
    if (!job_->options().spins) mode_ = prepared_ ? Mode::kSleep : Mode::kPrepare;
    return;
  }
  if (progress == Progress::kMoved) ++moves_;
  if (progress == Progress::kDone) finish_step();
  wake_up();
  if (progress != Progress::kSurprise) return;
  require(job_->arena(), step_ == job_->flow().surprise_at, "a wrong identity was read");
  end();
}

template <std::uint32_t Slots>
void FlowMember<Slots>::end() {
  if (job_->options().mortal >= 0) doorbells_->acknowledge_close();
  mode_ = Mode::kOver;
}

// The call has failed, and the owner of the memory does with it what he likes.
template <std::uint32_t Slots>
void FlowMember<Slots>::get_memory_back() {
  const int slices = is_two_shots() ? board().members() : 1;
  for (std::int64_t window = 0; lends() && window < job_->flow().rounds; ++window)
    for (int slice = 0; slice < slices; ++slice)
      job_->lent(number_, window, slice).store(kGivenBack, kRelaxed);
}

template <std::uint32_t Slots>
Progress FlowMember<Slots>::advance() {
  if (auto* const rounds = std::get_if<BasicRounds<Way>>(&sequence_)) return rounds->advance(*this);
  if (auto* const shots = std::get_if<BasicTwoShots<Way>>(&sequence_)) return shots->advance(*this);
  Way& way = std::get<Barrier>(sequence_).way;
  if (!way.entered()) enter(way);
  return way.meet();
}

template <std::uint32_t Slots>
void FlowMember<Slots>::expect(Value found, Value expected, const char* what_broke) const {
  require(job_->arena(), found == expected, what_broke);
}

template <std::uint32_t Slots>
void FlowMember<Slots>::expect_or_spoil(Value found, Value expected, const char* what_broke) {
  if (found == kGivenBack)
    spoiled_ = true;
  else
    expect(found, expected, what_broke);
}

template <std::uint32_t Slots>
void FlowMember<Slots>::stage(std::int64_t window) {
  ++hooks_;
  if (lends()) return;
  const Value value = job_->value(number_, step_, window);
  for (int slice = 0; is_two_shots() && slice < board().members(); ++slice)
    expect(mine(window, slice), value, "an input was overwritten before it was staged");
  if (job_->flow().inside)
    ModelAtomics::write_bytes(board().own_inside(step_), reinterpret_cast<const std::byte*>(&value),
                              sizeof(value));
  else
    job_->copy(number_, step_, window).store(value, kRelaxed);
  // A slice of one window may lie where another window has the copies.
  if (is_two_shots()) job_->result(number_, step_, window).store(value, kRelaxed);
}

template <std::uint32_t Slots>
void FlowMember<Slots>::enter(Way& way) {
  ++hooks_;
  const std::uint64_t input = lends() ? static_cast<std::uint64_t>(number_) : kNowhere;
  way.enter(0, input, is_two_shots() ? input : kNowhere);
  if (job_->has(Bug::kEntersEarly) && step_ < job_->options().steps) enter_ahead();
  if (job_->has(Bug::kWritesEarly)) write_early();
}

template <std::uint32_t Slots>
void FlowMember<Slots>::enter_ahead() {
  PlantedBoard<Slots> ahead = board();
  ahead.enter(1, step_ + 1, {.identity = identity_of(step_ + 1), .extent = 0});
}

// Clears what it is going to write.
template <std::uint32_t Slots>
void FlowMember<Slots>::write_early() {
  for (int member = 0; member < board().members(); ++member)
    if (member != number_ && job_->lends(member))
      job_->lent(member, 0, number_).store(job_->value(member, step_, 0), kRelaxed);
}

template <std::uint32_t Slots>
std::optional<std::int64_t> FlowMember<Slots>::meet() {
  ++hooks_;
  require(job_->arena(), step_ != job_->flow().surprise_at, "a surprise was not seen");
  return job_->flow().rounds;
}

template <std::uint32_t Slots>
bool FlowMember<Slots>::take(std::int64_t round) {
  ++hooks_;
  for (int member = 0; member < board().members(); ++member) {
    if (member == number_) continue;
    Value found = 0;
    if (job_->lends(member))
      found = job_->lent(member, round, 0).load(kRelaxed);
    else if (job_->flow().inside)
      ModelAtomics::read_bytes(reinterpret_cast<std::byte*>(&found), board().inside(member),
                               sizeof(found));
    else
      found = job_->copy(member, step_, round).load(kRelaxed);
    expect_or_spoil(found, job_->value(member, step_, round), "a wrong part was taken");
  }
  return true;
}

template <std::uint32_t Slots>
bool FlowMember<Slots>::reduce(std::int64_t window) {
  ++hooks_;
  const int members = board().members();
  for (int member = 0; member < members; ++member) {
    Value found = 0;
    if (job_->lends(member))
      found = job_->lent(member, window, number_).load(kRelaxed);
    else if (member == number_)
      found = mine(window, number_);
    else
      found = job_->copy(member, step_, window).load(kRelaxed);
    expect_or_spoil(found, job_->value(member, step_, window), "a wrong copy was reduced");
  }
  const Value sum = spoiled_ ? kGivenBack : job_->sum(step_, window);
  for (int member = 0; member < members; ++member)
    if (job_->lends(member)) job_->lent(member, window, number_).store(sum, kRelaxed);
  if (!lends()) mine(window, number_) = sum;
  if (!job_->all_lend()) job_->result(number_, step_, window).store(sum, kRelaxed);
  return true;
}

template <std::uint32_t Slots>
void FlowMember<Slots>::fetch(std::int64_t window) {
  ++hooks_;
  if (lends()) return;
  for (int member = 0; member < board().members(); ++member) {
    if (member == number_) continue;
    const Value found = job_->result(member, step_, window).load(kRelaxed);
    expect_or_spoil(found, job_->sum(step_, window), "a wrong result was fetched");
    mine(window, member) = found;
  }
}

template <std::uint32_t Slots>
Value FlowMember<Slots>::result_in_memory(std::int64_t window, int slice) {
  return lends() ? job_->peek(job_->lent(number_, window, slice)) : mine(window, slice);
}

// The owner of the memory takes the result and brings something new, at once.
template <std::uint32_t Slots>
void FlowMember<Slots>::finish_step() {
  require(job_->arena(), !spoiled_, "a step was completed with memory that was given back");
  if (is_two_shots())
    for (std::int64_t window = 0; window < job_->flow().rounds; ++window)
      for (int slice = 0; slice < board().members(); ++slice)
        expect(result_in_memory(window, slice), job_->sum(step_, window), "a wrong sum");
  ++step_;
  hooks_ = 0;
  moves_ = 0;
  if (step_ > job_->options().steps) return;
  fill_memory(step_);
  sequence_ = sequence_of(step_);
}

template <std::uint32_t Slots>
void FlowMember<Slots>::fill_memory(std::uint32_t step) {
  const int slices = is_two_shots() ? board().members() : 1;
  for (std::int64_t window = 0; window < job_->flow().rounds; ++window) {
    for (int slice = 0; slice < slices; ++slice) {
      const Value value = job_->value(number_, step, window);
      if (lends())
        job_->lent(number_, window, slice).store(value, kRelaxed);
      else if (is_two_shots())
        mine(window, slice) = value;
    }
  }
}

template class FlowMember<1>;
template class FlowMember<2>;

}  // namespace farandole::model
