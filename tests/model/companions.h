// Who else takes part in a job of the model: the watch thread of each member, the coordinator that
// stops everybody once, a user who wants to end, a thread that submits late.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "automaton.h"
#include "job.h"
#include "scenario.h"

namespace farandole::model {

// Sees the death of the mortal member by its pidfd; closes the epoch.
class DeathWatch final : public CopiedThread<DeathWatch> {
 public:
  DeathWatch(Job& job, int member) : job_(&job), member_(member) {}
  void write_key(ByteWriter& key) const override;
  bool finished() const override { return stage_ == 2; }
  void run() override;

 private:
  void close();

  Job* job_;  // borrowed
  int member_;
  int stage_ = 0;
};

// Hears from the coordinator; tells the holder of the progress lock.
class ControlWatch final : public CopiedThread<ControlWatch> {
 public:
  ControlWatch(Job& job, int member) : job_(&job), member_(member) {}
  void write_key(ByteWriter& key) const override;
  bool finished() const override { return stage_ == 2; }
  void run() override;

 private:
  void tell(Value message);

  Job* job_;  // borrowed
  int member_;
  int stage_ = 0;
};

// Stops everybody, collects the reports, answers with the longest common prefix.
class Coordinator final : public CopiedThread<Coordinator> {
 public:
  explicit Coordinator(Job& job) : job_(&job) {}
  void write_key(ByteWriter& key) const override;
  bool finished() const override;
  void run() override;

 private:
  std::uint32_t prefix() const;
  bool all_entered_alike(std::uint32_t step) const;

  Job* job_;  // borrowed
  std::uint32_t stage_ = 0;
  std::vector<Report> reports_;
};

// The user of a member, who wants it to end at any time.
class Impatience final : public CopiedThread<Impatience> {
 public:
  explicit Impatience(Job& job) : job_(&job) {}
  void write_key(ByteWriter& key) const override;
  bool finished() const override { return done_; }
  void run() override;

 private:
  Job* job_;  // borrowed
  bool done_ = false;
};

// A thread of member 0 that submits the last step while another one may sleep with the progress
// lock.
class Submitter final : public CopiedThread<Submitter> {
 public:
  explicit Submitter(Job& job) : job_(&job) {}
  void write_key(ByteWriter& key) const override;
  bool finished() const override { return done_; }
  void run() override;

 private:
  Job* job_;  // borrowed
  bool done_ = false;
};

// All threads of the job: members, their watch threads, and who else takes part.
Scenario scenario_of(Job& job);
// The same with members of another kind. Guards may be added.
using MemberMaker = std::function<std::unique_ptr<ModelThread>(int number)>;
Scenario scenario_of(Job& job, const MemberMaker& make_member);

}  // namespace farandole::model
