#include "companions.h"

#include <algorithm>
#include <memory>
#include <string>

#include "coordination/replan.h"
#include "member.h"

namespace farandole::model {

void DeathWatch::write_key(ByteWriter& key) const {
  key.put(member_);
  key.put(stage_);
}

void DeathWatch::run() {
  if (stage_ == 0 && !job_->has(Bug::kDeathWhileRunning))
    job_->reaped[static_cast<std::size_t>(job_->options().mortal)].await(1);
  if (stage_ == 1) close();
  ++stage_;
}

void DeathWatch::close() {
  Execution& execution = job_->arena().execution();
  if (job_->has(Bug::kCloseBellFirst)) job_->ring_all();
  execution.mute(job_->has(Bug::kCloseBellFirst) || job_->has(Bug::kCloseWithoutBell) ||
                 job_->options().spins);
  job_->doorbells(member_).close(job_->options().mortal);
  execution.mute(false);
}

void ControlReceiver::write_key(ByteWriter& key) const {
  key.put(member_);
  key.put(stage_);
}

void ControlReceiver::run() {
  if (stage_ == 0) {
    job_->stop.await(1);
    pass_on(1);
    if (job_->has(Bug::kReportByWatch)) {
      const auto own_index = static_cast<std::size_t>(member_);
      job_->reports[own_index].send(std::max(job_->progress[own_index].get(), pack(Report{})));
    }
  } else {
    job_->answer.await(1);
    pass_on(2);
  }
  ++stage_;
}

void ControlReceiver::pass_on(Value message) {
  job_->inbox[static_cast<std::size_t>(member_)].send(message);
  if (!job_->has(Bug::kStopWithoutBell)) job_->doorbells(member_).ring_self();
}

void Coordinator::write_key(ByteWriter& key) const {
  key.put(stage_);
  for (const Report& report : reports_) key.put(pack(report));
}

bool Coordinator::has_finished() const {
  return stage_ == static_cast<std::uint32_t>(job_->options().members) + 2;
}

void Coordinator::run() {
  if (stage_ == 0)
    job_->stop.send(1);
  else if (reports_.size() < job_->reports.size())
    reports_.push_back(unpack(job_->reports[reports_.size()].await(1)));
  else
    job_->answer.send(Value{prefix()} + 1);
  ++stage_;
}

std::uint32_t Coordinator::prefix() const {
  if (job_->has(Bug::kNaivePrefix))
    return std::ranges::min(reports_, {}, &Report::completed).completed;
  Replan replan(job_->ranks(), {});
  for (std::size_t member = 0; member < reports_.size(); ++member)
    require(job_->arena(), replan.add(MemberSet(static_cast<int>(member)), reports_[member]).ok(),
            "a report contradicts another one");
  return replan.common_prefix();
}

void LeavingUser::write_key(ByteWriter& key) const { key.put(done_); }

void LeavingUser::run() {
  job_->wants_to_end.send(1);
  if (!job_->options().spins) job_->doorbells(job_->options().quitter).ring_self();
  done_ = true;
}

void Submitter::write_key(ByteWriter& key) const { key.put(done_); }

void Submitter::run() {
  job_->submitted.send(1);
  if (!job_->has(Bug::kSubmitWithoutBell)) job_->doorbells(0).ring_self();
  done_ = true;
}

namespace {

void add(Scenario& scenario, const std::string& name, int member,
         std::unique_ptr<ModelThread> start) {
  const bool daemon = scenario.threads.size() >= scenario.mortal.size();
  scenario.threads.push_back(
      {.name = name, .member = member, .daemon = daemon, .start = std::move(start)});
}

std::unique_ptr<ModelThread> member_of(Job& job, int number) {
  if (job.slots() == 1) return std::make_unique<Member<1>>(job, number);
  return std::make_unique<Member<2>>(job, number);
}

}  // namespace

Scenario scenario_of(Job& job) {
  return scenario_of(job, [&](int number) { return member_of(job, number); });
}

Scenario scenario_of(Job& job, const MemberMaker& make_member) {
  const Options& options = job.options();
  Scenario scenario;
  scenario.arena = &job.arena();
  scenario.mortal.assign(static_cast<std::size_t>(options.members), false);
  for (int member = 0; member < options.members; ++member)
    add(scenario, "member " + std::to_string(member), member, make_member(member));
  if (options.mortal >= 0) {
    scenario.mortal[static_cast<std::size_t>(options.mortal)] =
        options.bug != Bug::kDeathWhileRunning;
    scenario.deaths_max = 1;
    scenario.reaped = job.reaped;
    for (int member = 0; member < options.members; ++member)
      if (member != options.mortal)
        add(scenario, "watch " + std::to_string(member), member,
            std::make_unique<DeathWatch>(job, member));
  }
  if (options.rollback) {
    for (int member = 0; member < options.members; ++member)
      add(scenario, "watch " + std::to_string(member), member,
          std::make_unique<ControlReceiver>(job, member));
    add(scenario, "coordinator", options.members, std::make_unique<Coordinator>(job));
  }
  if (options.quitter >= 0)
    add(scenario, "user", options.quitter, std::make_unique<LeavingUser>(job));
  if (options.late_submit) add(scenario, "submitter", 0, std::make_unique<Submitter>(job));
  return scenario;
}

}  // namespace farandole::model
