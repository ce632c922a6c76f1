#include "script.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "random.h"

namespace farandole::sim {
namespace {

// A script is a list of phases. In a phase every member of a group makes the same calls, once each.
// A program waits in a phase only for calls of earlier phases, or for those of this phase after it
// has submitted all of its own; or the phase has one order for everybody. So no program can lock
// itself up.
struct Phase {
  std::vector<int> calls;
  bool in_one_order;  // everybody submits in this order and waits after each call
};

int random_workers(Random& random) {
  const int kind = random.below(100);
  if (kind < 65) return random.between(2, 5);
  if (kind < 90) return random.between(6, 12);
  if (kind < 98) return random.between(13, 32);
  return random.between(33, 64);
}

std::vector<std::vector<int>> random_groups(Random& random, int workers) {
  if (workers == 3 && random.chance(50)) return {{0, 1}, {1, 2}, {0, 2}};
  std::vector<int> all(static_cast<std::size_t>(workers));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::vector<int>> groups;
  for (int count = random.between(1, 3); count > 0; --count) {
    auto members = all;
    if (random.chance(50)) {
      random.shuffle(members);
      members.resize(static_cast<std::size_t>(random.between(random.chance(90) ? 2 : 1, workers)));
      std::sort(members.begin(), members.end());
    }
    groups.push_back(std::move(members));
  }
  return groups;
}

Signature random_signature(Random& random, std::string name) {
  Signature signature;
  signature.name = std::move(name);
  signature.operation = static_cast<Operation>(random.below(static_cast<int>(Operation::kJoin)));
  if (signature.operation == Operation::kBarrier) return signature;
  signature.dtype = random.chance(50) ? DType::kFloat32 : DType::kInt64;
  for (int count = random.below(4); count > 0; --count)
    signature.dimensions.push_back(random.between(1, 9));
  if (signature.operation == Operation::kAllreduce && random.chance(20))
    signature.reduce_op = ReduceOp::kMin;
  return signature;
}

// Another signature for the same name; it differs for sure, in one part or in several.
Signature changed(Random& random, Signature signature) {
  const int part = signature.operation == Operation::kBarrier ? 0 : random.below(5);
  switch (part) {
    case 0:
      signature.operation =
          signature.operation == Operation::kBarrier ? Operation::kAllgather : Operation::kBarrier;
      break;
    case 1:
      if (signature.operation == Operation::kAllreduce) signature.reduce_op = ReduceOp::kMax;
      signature.dimensions.push_back(77);
      break;
    case 2:
      if (signature.operation == Operation::kBroadcast) signature.root_rank = 1;
      signature.dtype = DType::kFloat16;
      break;
    case 3:
      signature.dtype = DType::kBool;
      break;
    default:
      signature.dimensions.assign({5, 6, 77});
  }
  return signature;
}

// The calls of a job, phase by phase.
class JobWriter {
 public:
  JobWriter(Random& random, Script& script)
      : random_(random), script_(script), mismatches_percent_(random.chance(40) ? 12 : 0) {
    const bool long_names = random.chance(8);
    for (std::size_t group = 0; group < script.groups.size(); ++group) {
      for (int index = random.between(1, 8); index > 0; --index) {
        auto name = "n" + std::to_string(index);
        if (long_names) name.resize(static_cast<std::size_t>(random.between(10, 4096)), 'x');
        names_.push_back({static_cast<int>(group), std::move(name)});
      }
    }
  }

  // A few phases, some of them repeated as a training loop repeats them.
  std::vector<Phase> write() {
    const int calls_max = script_.workers <= 12 ? 8 : 3;
    std::vector<std::vector<Template>> loop;
    for (int count = random_.between(1, 3); count > 0; --count)
      loop.push_back(write_template(random_.between(1, calls_max)));
    std::vector<Phase> phases;
    for (int rounds = random_.between(1, script_.workers <= 32 ? 6 : 3); rounds > 0; --rounds) {
      for (auto& calls : loop) {
        if (random_.chance(10)) calls = write_template(random_.between(1, calls_max));
        phases.push_back(instance_of(calls));
      }
    }
    return phases;
  }

 private:
  struct Template {
    int group;
    Signature signature;
  };

  std::vector<Template> write_template(int count) {
    auto names = names_;
    random_.shuffle(names);
    if (names.size() > static_cast<std::size_t>(count))
      names.resize(static_cast<std::size_t>(count));
    std::vector<Template> calls;
    for (const auto& [group, name] : names)
      calls.push_back({group, random_signature(random_, name)});
    return calls;
  }

  Phase instance_of(const std::vector<Template>& templates) {
    Phase phase{{}, random_.chance(20)};
    for (const auto& [group, signature] : templates) {
      Call call{group, signature, {}};
      const auto& members = script_.groups[static_cast<std::size_t>(group)];
      if (members.size() > 1 && random_.chance(mismatches_percent_)) add_odd(call, members);
      phase.calls.push_back(static_cast<int>(script_.calls.size()));
      script_.calls.push_back(std::move(call));
    }
    return phase;
  }

  void add_odd(Call& call, std::vector<int> members) {
    random_.shuffle(members);
    const auto last = static_cast<int>(members.size()) - 1;
    members.resize(static_cast<std::size_t>(random_.between(1, last)));
    auto other = changed(random_, call.common);
    for (const int worker : members) {
      if (random_.chance(20)) other = changed(random_, call.common);
      call.odd.emplace(worker, other);
    }
  }

  Random& random_;
  Script& script_;
  int mismatches_percent_;
  std::vector<std::pair<int, std::string>> names_;  // (group, name)
};

// One worker's program through the phases.
class ProgramWriter {
 public:
  ProgramWriter(Random& random, const Script& script, int worker)
      : random_(random), script_(script), worker_(worker), pauses_percent_(random.below(15)) {}

  void add(const Phase& phase) {
    std::vector<int> mine;
    for (const int call : phase.calls)
      if (script_.member_of(script_.calls[static_cast<std::size_t>(call)].group, worker_))
        mine.push_back(call);
    if (phase.in_one_order) {
      for (const int call : mine) {
        submit(call);
        wait(call);
      }
      return;
    }
    random_.shuffle(mine);
    if (random_.chance(30)) start_with_own_group(mine);
    submit_all(mine);
    open_.insert(open_.end(), mine.begin(), mine.end());
    random_.shuffle(open_);
    if (random_.chance(70)) wait_for_some(random_.chance(70) ? 0 : 1);
  }

  std::vector<Action> finish() {
    wait_for_some(0);
    return std::move(actions_);
  }

 private:
  int group_of(int call) const { return script_.calls[static_cast<std::size_t>(call)].group; }

  // Group by group, each worker beginning with another one.
  void start_with_own_group(std::vector<int>& calls) {
    const auto groups = static_cast<int>(script_.groups.size());
    std::vector<int> ordered;
    for (int turn = 0; turn < groups; ++turn) {
      for (const int call : calls)
        if (group_of(call) == (worker_ + turn) % groups) ordered.push_back(call);
    }
    calls = std::move(ordered);
  }

  void submit_all(const std::vector<int>& calls) {
    for (std::size_t index = 0; index < calls.size(); ++index) {
      if (random_.chance(pauses_percent_)) pause();
      if (!open_.empty() && random_.chance(15)) wait(random_.pick(open_));
      if (index + 1 < calls.size() && random_.chance(10)) {
        submit_by_poll(calls[index], calls[index + 1]);
        ++index;
      } else {
        submit(calls[index]);
      }
    }
  }

  void submit_by_poll(int first, int second) {
    make_free(first);
    make_free(second);
    if (!open_.empty()) {
      actions_.emplace_back(SubmitByPoll{random_.pick(open_), first, second});
    } else {
      submit(second);
      submit(first);
    }
  }

  void submit(int call) {
    make_free(call);
    actions_.emplace_back(Submit{call, random_.chance(5)});
  }

  // A name can be submitted again when the call before is done.
  void make_free(int call) {
    const auto& wanted = script_.calls[static_cast<std::size_t>(call)];
    const auto blocking = std::find_if(open_.begin(), open_.end(), [&](int other) {
      const auto& earlier = script_.calls[static_cast<std::size_t>(other)];
      return earlier.group == wanted.group && earlier.common.name == wanted.common.name;
    });
    if (blocking != open_.end()) wait(*blocking);
  }

  void wait(int call) {
    actions_.emplace_back(Wait{call});
    std::erase(open_, call);
  }

  void wait_for_some(std::size_t left) {
    while (open_.size() > left) wait(open_.back());
  }

  void pause() {
    actions_.emplace_back(Pause{random_.between(1, 5) * script_.delay_max, random_.chance(30)});
  }

  Random& random_;
  const Script& script_;
  int worker_;
  int pauses_percent_;
  std::vector<int> open_;  // submitted in earlier phases, not waited for
  std::vector<Action> actions_;
};

}  // namespace

std::optional<int> Script::member_of(int group, int worker) const {
  const auto& members = groups[static_cast<std::size_t>(group)];
  const auto found = std::lower_bound(members.begin(), members.end(), worker);
  if (found == members.end() || *found != worker) return std::nullopt;
  return static_cast<int>(found - members.begin());
}

Script random_script(std::uint64_t seed) {
  Random random(seed);
  Script script;
  script.workers = random_workers(random);
  script.groups = random_groups(random, script.workers);
  for (std::size_t group = 0; group < script.groups.size(); ++group)
    script.names_max.push_back(
        static_cast<std::size_t>(random.chance(50) ? 65536 : random.between(1, 4)));
  script.delay_max = random.chance(20) ? 2 : random.between(10, 200);

  const auto phases = JobWriter(random, script).write();
  for (int worker = 0; worker < script.workers; ++worker) {
    ProgramWriter program(random, script, worker);
    for (const auto& phase : phases) program.add(phase);
    script.programs.push_back(program.finish());
  }
  if (random.chance(25)) {
    for (int count = random.chance(80) ? 1 : 2; count > 0; --count)
      script.deaths.push_back(
          {random.below(script.workers), random.below(30) * script.delay_max + random.below(50)});
  }
  return script;
}

}  // namespace farandole::sim
