// The threads of a model job besides the members: a watch thread for each member, a coordinator
// that stops all members once, a user who asks a member to end, and a thread that submits the last
// step late.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "automaton.h"
#include "job.h"
#include "scenario.h"

namespace farandole::model {

// The watch thread that sees the death of the mortal member by its pidfd and closes the epoch.
class DeathWatch final : public CopiedThread<DeathWatch> {
 public:
  DeathWatch(Job& job, int member) : job_(&job), member_(member) {}
  void write_key(ByteWriter& key) const override;
  bool has_finished() const override { return stage_ == 2; }
  void run() override;

 private:
  void close();

  Job* job_;  // borrowed
  int member_;
  int stage_ = 0;
};

// The watch thread that receives the coordinator's messages and passes them to the holder of the
// progress lock.
class ControlReceiver final : public CopiedThread<ControlReceiver> {
 public:
  ControlReceiver(Job& job, int member) : job_(&job), member_(member) {}
  void write_key(ByteWriter& key) const override;
  bool has_finished() const override { return stage_ == 2; }
  void run() override;

 private:
  void pass_on(Value message);

  Job* job_;  // borrowed
  int member_;
  int stage_ = 0;
};

// Stops all members, collects their reports, and answers with the common prefix that the shipped
// Replan finds.
class Coordinator final : public CopiedThread<Coordinator> {
 public:
  explicit Coordinator(Job& job) : job_(&job) {}
  void write_key(ByteWriter& key) const override;
  bool has_finished() const override;
  void run() override;

 private:
  std::uint32_t prefix() const;

  Job* job_;  // borrowed
  std::uint32_t stage_ = 0;
  std::vector<Report> reports_;
};

// The user of a member. The user may ask the member to end at any time.
class LeavingUser final : public CopiedThread<LeavingUser> {
 public:
  explicit LeavingUser(Job& job) : job_(&job) {}
  void write_key(ByteWriter& key) const override;
  bool has_finished() const override { return done_; }
  void run() override;

 private:
  Job* job_;  // borrowed
  bool done_ = false;
};

// A thread of member 0 that submits the last step while another thread may sleep and hold the
// progress lock.
class Submitter final : public CopiedThread<Submitter> {
 public:
  explicit Submitter(Job& job) : job_(&job) {}
  void write_key(ByteWriter& key) const override;
  bool has_finished() const override { return done_; }
  void run() override;

 private:
  Job* job_;  // borrowed
  bool done_ = false;
};

// All threads of the job: the members, their watch threads and the other companions.
Scenario scenario_of(Job& job);
// All threads of the job, with the members that `make_member` makes. The caller may add guards to
// the scenario.
using MemberMaker = std::function<std::unique_ptr<ModelThread>(int number)>;
Scenario scenario_of(Job& job, const MemberMaker& make_member);

}  // namespace farandole::model
