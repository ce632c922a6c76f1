#include "member.h"

namespace farandole::model {

// With the bug kAwaitsWithoutSecondCheck, the member publishes for which member it waits, but does
// not check once more whether that member has entered.
template <std::uint32_t Slots>
bool MemberBoard<Slots>::all_entered() {
  if (!job_->has(Bug::kAwaitsWithoutSecondCheck)) return Base::all_entered();
  const auto* lines = reinterpret_cast<typename Base::Line*>(job_->board_memory());
  const Value expected = Value{this->generation()} << 32 | this->sequence();
  for (std::uint32_t other = 0; other < static_cast<std::uint32_t>(this->members()); ++other) {
    const auto& line = lines[other * Slots + this->sequence() % Slots];
    if (line.word.load(std::memory_order_seq_cst) == expected) continue;
    job_->awaited(this->member()).store(other + 1, std::memory_order_seq_cst);
    return false;
  }
  return true;
}

template <std::uint32_t Slots>
Member<Slots>::Member(Job& job, int number)
    : job_(&job),
      doorbells_(&job.doorbells(number)),
      board_(job, number),
      number_(number),
      mode_(job.options().polls ? Mode::kCheck : Mode::kPrepare) {}

template <std::uint32_t Slots>
void Member<Slots>::write_key(ByteWriter& key) const {
  key.put(number_);
  key.put(mode_);
  key.put(stage_);
  key.put(task_);
  key.put(arrivals_);
  for (const bool flag : {prepared_, reported_, answered_}) key.put(flag);
  for (const auto value :
       {prefix_, step_, ticket_, payloads_step_, board_.generation(), board_.sequence()})
    key.put(value);
  board_.write_key(key);
  for (const auto value : payloads_taken_) key.put(value);
}

template <std::uint32_t Slots>
void Member<Slots>::run() {
  switch (mode_) {
    case Mode::kCheck:
    case Mode::kCheckAgain:
      task_ = find_task();
      if (task_ != Task::kNothing)
        mode_ = Mode::kAct;
      else
        mode_ = mode_ == Mode::kCheck ? Mode::kPrepare : Mode::kSleep;
      break;
    case Mode::kPrepare:
      prepare();
      break;
    case Mode::kAct:
      act();
      break;
    case Mode::kSleep:
      sleep();
      break;
    case Mode::kOver:
      break;
  }
}

template <std::uint32_t Slots>
void Member<Slots>::prepare() {
  ticket_ = doorbells_->prepare_sleep();
  prepared_ = true;
  mode_ = job_->has(Bug::kNoSecondCheck) ? Mode::kSleep : Mode::kCheckAgain;
}

template <std::uint32_t Slots>
void Member<Slots>::sleep() {
  if (job_->has(Bug::kBellLoadedAfterCheck))
    ticket_ = job_->bell_line(number_).bell.load(std::memory_order_seq_cst);
  if (job_->has(Bug::kAsleepClearedBeforeWait)) doorbells_->cancel_sleep();
  doorbells_->sleep(ticket_, {});
  prepared_ = false;
  ticket_ = 0;
  // A member that makes no second check must check before it prepares to sleep.
  const bool checks_first = job_->options().polls || job_->has(Bug::kNoSecondCheck);
  mode_ = checks_first ? Mode::kCheck : Mode::kPrepare;
}

template <std::uint32_t Slots>
auto Member<Slots>::find_task() -> Task {
  const Options& options = job_->options();
  if (options.mortal >= 0 && doorbells_->closed_by()) return Task::kLeave;
  if (options.rollback && !answered_) {
    const Value inbox = job_->inbox[static_cast<std::size_t>(number_)].await(0);
    if (inbox >= 1 && !reported_) return Task::kReport;
    if (inbox >= 2 && reported_) return Task::kFollowAnswer;
    // After the stop, a member finishes a step that it has entered, but enters no new step.
    const bool may_enter = !reported_ || job_->has(Bug::kEntersAfterReport);
    if (stage_ == Stage::kEnter && !may_enter) return Task::kNothing;
  }
  if (step_can_go_on()) return Task::kStep;
  if (options.leaver >= 0 && options.leaver != number_ && doorbells_->leaver(options.leaver))
    return Task::kObserveLeave;
  return Task::kNothing;
}

template <std::uint32_t Slots>
bool Member<Slots>::step_can_go_on() {
  const Options& options = job_->options();
  switch (stage_) {
    case Stage::kEnter:
      if (options.late_submit && number_ == 0 && step_ == options.steps &&
          job_->submitted.await(0) == 0)
        return false;
      return true;
    case Stage::kRun:
      arrivals_ = check_arrivals();
      return arrivals_ != Progress::kPending;
    case Stage::kPhase:
      return board_.all_reached(1);
    case Stage::kComplete:
      return !options.rollback || answered_;
    case Stage::kMispredicted:
      return false;
  }
  return false;
}

template <std::uint32_t Slots>
Progress Member<Slots>::check_arrivals() {
  if (job_->has(Bug::kPayloadPerPeer))
    return check_per_peer() ? Progress::kDone : Progress::kPending;
  const StepIdentity identity = {.generation = board_.generation(),
                                 .sequence = board_.sequence(),
                                 .id = job_->identity(number_, board_.generation(), step_)};
  return BasicEntryBarrier(board_, identity).check_arrivals();
}

// With the bug kPayloadPerPeer, the member reads each peer's payload as soon as that peer has
// entered, and uses this payload later.
template <std::uint32_t Slots>
bool Member<Slots>::check_per_peer() {
  if (payloads_step_ != step_) payloads_taken_ = {};
  payloads_step_ = step_;
  const auto* lines = reinterpret_cast<typename ModelBoard<Slots>::Line*>(job_->board_memory());
  const Value expected = Value{board_.generation()} << 32 | board_.sequence();
  bool all_entered = true;
  for (std::uint32_t peer = 0; peer < static_cast<std::uint32_t>(board_.members()); ++peer) {
    const auto& line = lines[peer * Slots + board_.sequence() % Slots];
    const bool entered = line.word.load(std::memory_order_seq_cst) == expected;
    all_entered = all_entered && entered;
    if (entered && payloads_taken_[peer] == 0)
      payloads_taken_[peer] = board_.entry(static_cast<int>(peer)).declared_count;
  }
  return all_entered;
}

template <std::uint32_t Slots>
void Member<Slots>::act() {
  switch (task_) {
    case Task::kStep:
      act_step();
      break;
    case Task::kReport:
      report();
      break;
    case Task::kFollowAnswer:
      follow_answer();
      break;
    case Task::kLeave:
      leave();
      break;
    case Task::kObserveLeave:
      observe_leave();
      break;
    case Task::kNothing:
      break;
  }
  task_ = Task::kNothing;
  after_action();
}

template <std::uint32_t Slots>
void Member<Slots>::after_action() {
  if (prepared_ && mode_ != Mode::kOver) doorbells_->cancel_sleep();
  prepared_ = false;
  ticket_ = 0;
  if (mode_ == Mode::kOver) return;
  const bool checks_first = job_->options().polls || job_->has(Bug::kNoSecondCheck);
  mode_ = checks_first ? Mode::kCheck : Mode::kPrepare;
}

template <std::uint32_t Slots>
void Member<Slots>::act_step() {
  switch (stage_) {
    case Stage::kEnter:
      enter();
      break;
    case Stage::kRun:
      read_entries();
      break;
    case Stage::kPhase:
      finish_step();
      break;
    case Stage::kComplete:
      leave();
      break;
    case Stage::kMispredicted:
      break;
  }
}

template <std::uint32_t Slots>
void Member<Slots>::enter() {
  const Entry entry{.identity = job_->identity(number_, generation(), step_),
                    .declared_count = job_->payload(number_, generation(), step_)};
  ring_early();
  board_.enter(generation(), sequence(), entry);
  unmute_bells();
  stage_ = Stage::kRun;
  publish_progress();
}

// With the bug kBellBeforeFlag, the member rings the bells before it stores the flag. Without this
// bug, the member rings the bells after it has stored the flag.
template <std::uint32_t Slots>
void Member<Slots>::ring_early() {
  if (!job_->has(Bug::kBellBeforeFlag)) return;
  for (int other = 0; other < board_.members(); ++other)
    if (other != number_) doorbells_->ring(other);
  job_->arena().execution().mute(true);
}

template <std::uint32_t Slots>
void Member<Slots>::unmute_bells() {
  job_->arena().execution().mute(false);
}

template <std::uint32_t Slots>
void Member<Slots>::read_entries() {
  Arena& arena = job_->arena();
  const bool mispredicted = arrivals_ == Progress::kMisprediction;
  arrivals_ = Progress::kPending;
  require(arena, !mispredicted || step_ >= job_->options().identities_differ_from,
          "a wrong identity was read");
  if (mispredicted) {
    stage_ = Stage::kMispredicted;
    return;
  }
  std::int64_t sum = 0;
  for (int other = 0; other < board_.members(); ++other)
    sum += job_->has(Bug::kPayloadPerPeer) ? payloads_taken_[static_cast<std::size_t>(other)]
                                           : board_.declared_count(other);
  require(arena, sum == job_->sum(generation(), step_), "a wrong sum");
  if (job_->options().two_phase) {
    if (job_->has(Bug::kPhaseWithoutBell)) arena.execution().mute(true);
    board_.publish_phase(1);
    arena.execution().mute(false);
    stage_ = Stage::kPhase;
    return;
  }
  finish_step();
}

template <std::uint32_t Slots>
void Member<Slots>::finish_step() {
  Arena& arena = job_->arena();
  require(arena, job_->rolled_back[step_].get() != generation(),
          "a step was completed that somebody rolled back");
  job_->completed[step_].set(generation());
  if (leaves_now()) {
    if (job_->has(Bug::kLeaveWithoutBell)) arena.execution().mute(true);
    doorbells_->leave("enough");
    mode_ = Mode::kOver;
    return;
  }
  stage_ = step_ == job_->options().steps ? Stage::kComplete : Stage::kEnter;
  ++step_;
  publish_progress();
}

template <std::uint32_t Slots>
bool Member<Slots>::leaves_now() const {
  return job_->options().leaver == number_ && step_ == 1;
}

template <std::uint32_t Slots>
Report Member<Slots>::progress() const {
  const bool has_entered =
      stage_ == Stage::kRun || stage_ == Stage::kPhase || stage_ == Stage::kMispredicted;
  Report report = {};
  report.completed = step_ - 1;
  if (!has_entered) return report;
  report.entered = 1;
  report.identity = job_->identity(number_, generation(), step_);
  return report;
}

template <std::uint32_t Slots>
void Member<Slots>::publish_progress() {
  if (job_->has(Bug::kReportByWatch))
    job_->progress[static_cast<std::size_t>(number_)].set(pack(progress()));
}

template <std::uint32_t Slots>
void Member<Slots>::report() {
  reported_ = true;
  if (job_->has(Bug::kReportByWatch)) return;
  job_->reports[static_cast<std::size_t>(number_)].send(pack(progress()));
}

template <std::uint32_t Slots>
void Member<Slots>::follow_answer() {
  Arena& arena = job_->arena();
  prefix_ = static_cast<std::uint32_t>(job_->answer.get() - 1);
  const Report own_report = progress();
  for (std::uint32_t step = prefix_ + 1; step <= job_->options().steps; ++step) {
    require(arena, job_->completed[step].get() != 1 && step > own_report.completed,
            "a step that a member completed was rolled back");
    job_->rolled_back[step].set(1);
  }
  answered_ = true;
  // If this member has entered a step of the common prefix, it completes the step under the step's
  // own generation.
  if (own_report.completed + own_report.entered <= prefix_) return;
  board_.roll_back();
  arrivals_ = Progress::kPending;
  step_ = prefix_ + 1;
  stage_ = Stage::kEnter;
}

template <std::uint32_t Slots>
void Member<Slots>::leave() {
  mode_ = Mode::kOver;
}

template <std::uint32_t Slots>
void Member<Slots>::observe_leave() {
  const auto leaver = doorbells_->leaver(job_->options().leaver);
  require(job_->arena(), leaver && leaver->ticket == 1 && leaver->reason == "enough",
          "the reason of the leaver is wrong");
  mode_ = Mode::kOver;
}

template <std::uint32_t Slots>
std::uint32_t Member<Slots>::sequence() const {
  const bool restarted = job_->has(Bug::kSequenceRestarted) && generation() == 2;
  return restarted ? step_ - prefix_ : step_;
}

template class Member<1>;
template class Member<2>;

}  // namespace farandole::model
