#include "free_script.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "random_calls.h"

namespace farandole::sim {
namespace {

// A script is a list of phases. In a phase, every member of a group makes the same calls, each
// once. Programs cannot deadlock, because each phase keeps one of two rules. With the first rule, a
// program submits all its calls of the phase before it waits for any of these calls. Before its
// last submission, the program waits only for calls of earlier phases. With the second rule, all
// programs make their calls of the phase in one order. In some phases, the members of a group may
// join. Each member joins in one of these phases, after some calls of that phase, and then makes no
// calls until the release. After the last of these phases, programs may wait for the release.
struct Phase {
  struct Join {
    int call;
    std::set<int> workers;  // the workers that join in this phase
  };

  bool in_one_order;  // all programs submit `calls` in this order and wait after each call
  std::vector<int> calls = {};
  std::vector<std::vector<int>> batches = {};  // some of the calls, grouped into batches
  std::vector<Join> joins = {};
  std::vector<int> releases = {};  // joins that programs may wait for at the end of this phase
};

// Writes the calls of a job, phase by phase.
class JobWriter {
 public:
  JobWriter(Random& random, Script& script)
      : random_(random),
        script_(script),
        mismatches_percent_(random.chance(40) ? 12 : 0),
        joins_percent_(random.chance(50) ? 40 : 0),
        batches_percent_(random.chance(50) ? 50 : 0),
        joining_groups_(script.groups.size()) {
    const bool long_names = random.chance(8);
    for (std::size_t group = 0; group < script.groups.size(); ++group) {
      for (int index = random.between(1, 8); index > 0; --index) {
        auto name = "n" + std::to_string(index);
        if (long_names) name.resize(static_cast<std::size_t>(random.between(10, 4096)), 'x');
        names_.push_back({static_cast<int>(group), std::move(name)});
      }
    }
  }

  // Writes a few phases and repeats them as a training loop does, with some changes.
  std::vector<Phase> write() {
    const int calls_max = script_.workers <= 12 ? 8 : 3;
    std::vector<std::vector<Template>> loop;
    for (int count = random_.between(1, 3); count > 0; --count)
      loop.push_back(write_templates(random_.between(1, calls_max)));
    const int rounds = random_.between(1, script_.workers <= 12 ? 12 : 3);
    phases_left_ = rounds * static_cast<int>(loop.size());
    std::vector<Phase> phases;
    for (; phases_left_ > 0; --phases_left_) {
      auto& calls = loop[phases.size() % loop.size()];
      if (random_.chance(10)) calls = write_templates(random_.between(1, calls_max));
      phases.push_back(make_phase(calls));
    }
    return phases;
  }

 private:
  struct Template {
    int group;
    Signature signature;
  };

  std::vector<Template> write_templates(int count) {
    auto names = names_;
    random_.shuffle(names);
    if (names.size() > static_cast<std::size_t>(count))
      names.resize(static_cast<std::size_t>(count));
    std::vector<Template> calls;
    for (const auto& [group, name] : names)
      calls.push_back({group, random_signature(random_, name)});
    return calls;
  }

  // A group while its members join.
  struct JoiningGroup {
    int call = -1;
    int phases_left = 0;                    // 0: no member is joining
    std::map<int, int> phases_before_join;  // by worker; negative after its join
    // For each worker, in the phase in which it joins: how many calls of this phase it makes before
    // the join.
    std::map<int, int> calls_before_join;
  };

  Phase make_phase(const std::vector<Template>& templates) {
    Phase phase{.in_one_order = random_.chance(20)};
    for (std::size_t group = 0; group < joining_groups_.size(); ++group)
      if (joining_groups_[group].phases_left == 0 && random_.chance(joins_percent_))
        start_joining(static_cast<int>(group));
    std::vector<int> calls_before(script_.groups.size());  // by group
    for (const auto& [group, signature] : templates) {
      Call call{group, signature};
      choose_makers(call, phase.in_one_order, calls_before[static_cast<std::size_t>(group)]++);
      if (call.makers.empty()) continue;
      if (call.makers.size() > 1 && random_.chance(mismatches_percent_))
        make_rejected(random_, call);
      phase.calls.push_back(static_cast<int>(script_.calls.size()));
      script_.calls.push_back(std::move(call));
    }
    for (auto& joining : joining_groups_)
      if (joining.phases_left > 0) end_phase(joining, phase);
    if (random_.chance(batches_percent_)) choose_batch(phase);
    return phase;
  }

  // Makes one batch of calls of one group, in random order. All members of the group make these
  // calls.
  void choose_batch(Phase& phase) {
    auto calls = phase.calls;
    random_.shuffle(calls);
    std::vector<int> batch;
    for (const int number : calls) {
      const auto& call = script_.calls[static_cast<std::size_t>(number)];
      if (!call.joined.empty()) continue;
      if (batch.empty() || script_.call(batch.front()).group == call.group) batch.push_back(number);
    }
    if (batch.size() > 1) phase.batches.push_back(std::move(batch));
  }

  void start_joining(int group) {
    Signature signature;
    signature.name = "join";
    signature.operation = Operation::kJoin;
    Call call{group, signature};
    call.makers = script_.groups[static_cast<std::size_t>(group)];
    auto& joining = joining_groups_[static_cast<std::size_t>(group)];
    joining.call = static_cast<int>(script_.calls.size());
    joining.phases_left = random_.between(1, std::min(phases_left_, 3));
    for (const int worker : call.makers) {
      joining.phases_before_join[worker] = random_.below(joining.phases_left);
      joining.calls_before_join[worker] = random_.below(4);
      if (!random_.chance(30)) continue;
      signature.name = "join of " + std::to_string(worker);
      call.odd_signatures.emplace(worker, signature);
    }
    script_.calls.push_back(std::move(call));
  }

  void choose_makers(Call& call, bool in_one_order, int calls_before) {
    const auto& joining = joining_groups_[static_cast<std::size_t>(call.group)];
    if (joining.phases_left > 0) call.join = joining.call;
    for (const int worker : script_.groups[static_cast<std::size_t>(call.group)]) {
      const bool makes =
          joining.phases_left == 0 || makes_call(joining, worker, in_one_order, calls_before);
      (makes ? call.makers : call.joined).push_back(worker);
    }
  }

  bool makes_call(const JoiningGroup& joining, int worker, bool in_one_order, int calls_before) {
    const int phases_left = joining.phases_before_join.at(worker);
    if (phases_left != 0) return phases_left > 0;
    return in_one_order ? calls_before < joining.calls_before_join.at(worker) : random_.chance(50);
  }

  static void end_phase(JoiningGroup& joining, Phase& phase) {
    Phase::Join join{joining.call, {}};
    for (auto& [worker, phases_left] : joining.phases_before_join)
      if (phases_left-- == 0) join.workers.insert(worker);
    phase.joins.push_back(std::move(join));
    if (--joining.phases_left == 0) phase.releases.push_back(joining.call);
  }

  Random& random_;
  Script& script_;
  int mismatches_percent_;
  int joins_percent_;
  int batches_percent_;
  std::vector<JoiningGroup> joining_groups_;  // by group
  int phases_left_ = 0;
  std::vector<std::pair<int, std::string>> names_;  // (group, name)
};

// Writes one worker's program through the phases.
class ProgramWriter {
 public:
  ProgramWriter(Random& random, const Script& script, int worker)
      : random_(random), script_(script), worker_(worker), pauses_percent_(random.below(15)) {}

  void add(const Phase& phase) {
    std::vector<int> own_calls;
    for (const int number : phase.calls)
      if (std::ranges::binary_search(call(number).makers, worker_)) own_calls.push_back(number);
    if (!phase.in_one_order) {
      random_.shuffle(own_calls);
      if (random_.chance(30)) start_with_own_group(own_calls);
    }
    for (const auto& join : phase.joins)
      if (join.workers.contains(worker_)) add_join(own_calls, join.call, phase.in_one_order);
    if (phase.in_one_order) {
      submit_in_turn(own_calls);
    } else {
      for (const auto& batch : phase.batches) gather_batch(own_calls, batch);
      submit_all(own_calls, phase.batches);
      for (const int number : own_calls)
        if (!call(number).is_join()) open_calls_.push_back(number);
    }
    for (const int join : phase.releases)
      if (script_.member_of(call(join).group, worker_)) open_calls_.push_back(join);
    if (phase.in_one_order) return;
    random_.shuffle(open_calls_);
    if (random_.chance(70)) wait_until_few_are_open(random_.chance(70) ? 0 : 1);
  }

  std::vector<Action> finish() {
    wait_until_few_are_open(0);
    return std::move(actions_);
  }
  Time pauses() const { return pauses_; }

 private:
  const Call& call(int number) const { return script_.calls[static_cast<std::size_t>(number)]; }

  // Adds a join after the worker's calls in the join's group. If `at_once`, the join comes directly
  // after these calls. This is necessary in a phase in which all programs use one order: other
  // programs may wait for a call that cannot be decided before the join.
  void add_join(std::vector<int>& calls, int join, bool at_once) {
    auto place = std::find_if(calls.rbegin(), calls.rend(), [&](int number) {
                   return call(number).group == call(join).group;
                 }).base();
    if (!at_once) place += random_.between(0, static_cast<int>(calls.end() - place));
    calls.insert(place, join);
  }

  void submit_in_turn(const std::vector<int>& calls) {
    for (const int number : calls) {
      submit(number);
      if (!call(number).is_join()) wait(number);
    }
  }

  // Orders calls by group; the worker's number decides with which group this order begins.
  void start_with_own_group(std::vector<int>& calls) {
    const auto groups = static_cast<int>(script_.groups.size());
    std::vector<int> ordered;
    for (int turn = 0; turn < groups; ++turn) {
      for (const int number : calls)
        if (call(number).group == (worker_ + turn) % groups) ordered.push_back(number);
    }
    calls = std::move(ordered);
  }

  // Moves the calls of a batch directly behind the first call of this batch. A worker that makes
  // one call of the batch makes all of them.
  static void gather_batch(std::vector<int>& calls, const std::vector<int>& batch) {
    const auto first = std::ranges::find(calls, batch.front());
    if (first == calls.end()) return;
    const auto is_later = [&](int number) {
      return number != batch.front() && std::ranges::find(batch, number) != batch.end();
    };
    std::erase_if(calls, is_later);
    const auto place = std::ranges::find(calls, batch.front()) + 1;
    calls.insert(place, batch.begin() + 1, batch.end());
  }

  using Batches = std::vector<std::vector<int>>;

  static Batches::const_iterator batch_beginning_with(const Batches& batches, int number) {
    return std::ranges::find_if(batches,
                                [&](const auto& batch) { return batch.front() == number; });
  }

  void submit_all(const std::vector<int>& calls, const Batches& batches) {
    for (std::size_t index = 0; index < calls.size(); ++index) {
      if (random_.chance(pauses_percent_)) pause();
      if (!open_calls_.empty() && random_.chance(15)) wait(random_.pick(open_calls_));
      const auto batch = batch_beginning_with(batches, calls[index]);
      const bool has_next = index + 1 < calls.size() && !call(calls[index]).is_join() &&
                            !call(calls[index + 1]).is_join() &&
                            batch_beginning_with(batches, calls[index + 1]) == batches.end();
      if (batch != batches.end()) {
        submit_batch(*batch);
        index += batch->size() - 1;
      } else if (has_next && random_.chance(10)) {
        submit_in_polled_order(calls[index], calls[index + 1]);
        ++index;
      } else {
        submit(calls[index]);
      }
    }
  }

  void submit_in_polled_order(int first, int second) {
    wait_until_free(first);
    wait_until_free(second);
    if (!open_calls_.empty()) {
      actions_.emplace_back(SubmitInPolledOrder{random_.pick(open_calls_), first, second});
    } else {
      submit(second);
      submit(first);
    }
  }

  void submit(int number) {
    wait_until_free(number);
    actions_.emplace_back(Submit{number, random_.chance(5)});
  }

  void submit_batch(const std::vector<int>& batch) {
    for (const int number : batch) wait_until_free(number);
    actions_.emplace_back(SubmitBatch{batch});
  }

  // Waits until this call can be submitted: its name is free, and no join of the group is in
  // flight.
  void wait_until_free(int number) {
    const auto& call_to_submit = call(number);
    const auto blocks = [&](int other) {
      const auto& earlier = call(other);
      return earlier.group == call_to_submit.group &&
             (earlier.is_join() || earlier.common.name == call_to_submit.common.name);
    };
    for (auto found = std::ranges::find_if(open_calls_, blocks); found != open_calls_.end();
         found = std::ranges::find_if(open_calls_, blocks))
      wait(*found);
  }

  void wait(int number) {
    actions_.emplace_back(Wait{number});
    std::erase(open_calls_, number);
  }

  void wait_until_few_are_open(std::size_t open_max) {
    while (open_calls_.size() > open_max) wait(open_calls_.back());
  }

  void pause() {
    const Time time = random_.between(1, 5) * script_.delay_max;
    pauses_ += time;
    actions_.emplace_back(Pause{time, random_.chance(30)});
  }

  Random& random_;
  const Script& script_;
  int worker_;
  int pauses_percent_;
  Time pauses_ = 0;
  std::vector<int> open_calls_;  // submitted in earlier phases, not yet waited for
  std::vector<Action> actions_;
};

}  // namespace

void write_free_script(Random& random, Script& script) {
  const auto phases = JobWriter(random, script).write();
  for (int worker = 0; worker < script.workers; ++worker) {
    ProgramWriter program(random, script, worker);
    for (const auto& phase : phases) program.add(phase);
    script.pauses += program.pauses();
    script.programs.push_back(program.finish());
  }
}

}  // namespace farandole::sim
