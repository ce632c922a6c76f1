#include "loop_script.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "random_calls.h"

namespace farandole::sim {
namespace {

enum class Style : std::uint8_t {
  kSubmitAllThenWait,  // submit all calls, then wait for all
  kInTurn,             // wait after each call; the same order on all workers
  kWindow,             // leave two calls open after each submission; the same order on all workers
  kOverlapping,        // wait only for the previous iteration, so there are no quiescent points
};

enum class Order : std::uint8_t {
  kFixed,        // the same order in every iteration and on all workers
  kByIteration,  // another order in each iteration, the same on all workers
  kByWorker,     // another order in each iteration and on each worker
};

struct CallTemplate {
  int group;
  Signature signature;
};
// Calls that are submitted together: a single call, or the calls of a batch.
using BatchTemplate = std::vector<CallTemplate>;
// Between the stages of an iteration, all programs wait for all calls, except in kOverlapping.
using Stage = std::vector<BatchTemplate>;
using Variant = std::vector<Stage>;

// The batches and single calls of one stage, each as a list of call numbers.
using StageCalls = std::vector<std::vector<int>>;
struct Iteration {
  std::vector<StageCalls> stages;
  std::vector<int> joins;  // all workers join at the end of the iteration
};

class LoopWriter {
 public:
  LoopWriter(Random& random, Script& script)
      : random_(random), script_(script), is_large_(script.workers > 64) {
    const int style = random.below(100);
    style_ = style < 50   ? Style::kSubmitAllThenWait
             : style < 65 ? Style::kInTurn
             : style < 85 ? Style::kWindow
                          : Style::kOverlapping;
    const int order = random.below(100);
    order_ = order < 25 ? Order::kFixed : order < 35 ? Order::kByIteration : Order::kByWorker;
    if (style_ == Style::kWindow) order_ = Order::kFixed;
    if (style_ == Style::kInTurn && order_ == Order::kByWorker) order_ = Order::kByIteration;
    forgets_names_ = random.chance(10);
    for (auto& options : script.options) {
      options.names_max = forgets_names_ ? static_cast<std::size_t>(random.between(2, 8)) : 65536;
      options.grace_time = std::chrono::microseconds(60 * script.delay_max);
    }
  }

  void write() {
    for (int count = random_.chance(50) ? 1 : random_.between(2, 3); count > 0; --count)
      variants_.push_back(random_variant());
    choose_pattern();
    const auto iterations = write_iterations();
    for (int worker = 0; worker < script_.workers; ++worker)
      script_.programs.push_back(program(worker, iterations));
    set_expectations();
  }

 private:
  Variant random_variant() {
    // A variant may begin like another variant, or share some of its calls with another variant.
    Variant variant(static_cast<std::size_t>(random_.chance(70) ? 1 : 2));
    std::set<std::pair<int, std::string>> taken;
    for (auto& stage : variant)
      for (int count = random_.between(1, is_large_ ? 2 : 6); count > 0; --count)
        if (auto batch = random_batch(taken); !batch.empty()) stage.push_back(std::move(batch));
    std::erase_if(variant, [](const auto& stage) { return stage.empty(); });
    return variant;
  }

  BatchTemplate random_batch(std::set<std::pair<int, std::string>>& taken) {
    const int group = random_.below(static_cast<int>(script_.groups.size()));
    BatchTemplate batch;
    for (int count = random_.chance(80) ? 1 : random_.between(2, 4); count > 0; --count) {
      const auto name = "n" + std::to_string(random_.below(is_large_ ? 4 : 16));
      if (!taken.emplace(group, name).second) continue;
      const auto known = signatures_.find({group, name});
      if (known != signatures_.end()) {
        batch.push_back({group, known->second});
        continue;
      }
      batch.push_back({group, random_.chance(80) ? random_allreduce(random_, name)
                                                 : random_signature(random_, name)});
      signatures_.emplace(std::pair(group, name), batch.back().signature);
    }
    return batch;
  }

  // Decides which variant each iteration runs: periodically or at random.
  void choose_pattern() {
    const int count = is_large_ ? random_.between(4, 8) : random_.between(8, 12);
    interruptions_percent_ = is_large_ || random_.chance(60) ? 0 : 8;
    disturbed_iterations_ = interruptions_percent_ == 0 ? 0 : 12;
    const int length = is_large_ ? count : disturbed_iterations_ + kIterationsToLearn + count;
    const auto variants = static_cast<int>(variants_.size());
    std::vector<int> period;
    for (int left = random_.between(1, 4); left > 0; --left)
      period.push_back(random_.below(variants));
    const bool by_chance = random_.chance(20);
    for (int iteration = 0; iteration < length; ++iteration)
      pattern_.push_back(by_chance ? random_.below(variants)
                                   : period[static_cast<std::size_t>(iteration) % period.size()]);
  }

  std::vector<Iteration> write_iterations() {
    std::vector<Iteration> iterations;
    for (std::size_t number = 0; number < pattern_.size(); ++number) {
      Iteration iteration;
      const bool disturbs = static_cast<int>(number) < disturbed_iterations_;
      for (const auto& stage : variants_[static_cast<std::size_t>(pattern_[number])]) {
        StageCalls batches;
        for (const auto& batch : stage) batches.push_back(calls_of(batch, disturbs));
        if (disturbs && random_.chance(interruptions_percent_)) batches.push_back(extra_call());
        if (order_ == Order::kByIteration) random_.shuffle(batches);
        iteration.stages.push_back(std::move(batches));
      }
      if (disturbs && random_.chance(interruptions_percent_ / 2))
        iteration.joins.push_back(join_call());
      iterations.push_back(std::move(iteration));
    }
    return iterations;
  }

  int add_call(int group, const Signature& signature) {
    Call call{group, signature};
    call.makers = script_.members(group);
    script_.calls.push_back(std::move(call));
    return static_cast<int>(script_.calls.size()) - 1;
  }

  std::vector<int> calls_of(const BatchTemplate& batch, bool disturbs) {
    std::vector<int> calls;
    for (const auto& [group, signature] : batch) {
      calls.push_back(add_call(group, signature));
      auto& call = script_.calls.back();
      if (!disturbs || call.makers.size() == 1 || !random_.chance(interruptions_percent_ / 4))
        continue;
      make_rejected(random_, call);
      is_disturbed_ = true;
    }
    return calls;
  }

  // A call that belongs to no variant; all members make it.
  std::vector<int> extra_call() {
    is_disturbed_ = true;
    const int group = random_.below(static_cast<int>(script_.groups.size()));
    return {add_call(group, random_signature(random_, "extra" + std::to_string(random_.below(3))))};
  }

  int join_call() {
    is_disturbed_ = true;
    Signature signature;
    signature.name = "join";
    signature.operation = Operation::kJoin;
    return add_call(random_.below(static_cast<int>(script_.groups.size())), signature);
  }

  std::vector<Action> program(int worker, const std::vector<Iteration>& iterations) {
    actions_.clear();
    open_calls_.clear();
    calls_of_last_iteration_.clear();
    pauses_percent_ = random_.chance(50) ? 0 : random_.below(10);
    for (std::size_t number = 0; number < iterations.size(); ++number) {
      actions_.emplace_back(BeginIteration{static_cast<int>(number)});
      for (const auto& stage : iterations[number].stages) add_stage(worker, stage);
      for (const int join : iterations[number].joins) {
        if (!is_maker(worker, join)) continue;
        actions_.emplace_back(Submit{join, false});
        wait_for_all();
        actions_.emplace_back(Wait{join});
      }
      for (const int earlier : calls_of_last_iteration_) wait(earlier);
      calls_of_last_iteration_ = open_calls_;
    }
    wait_for_all();
    return std::move(actions_);
  }

  bool is_maker(int worker, int number) const {
    return std::ranges::binary_search(script_.call(number).makers, worker);
  }

  void add_stage(int worker, StageCalls batches) {
    std::erase_if(batches, [&](const auto& batch) { return !is_maker(worker, batch.front()); });
    if (order_ == Order::kByWorker) random_.shuffle(batches);
    const auto window = static_cast<std::size_t>(style_ == Style::kInTurn ? 0 : 2);
    for (std::size_t index = 0; index < batches.size(); ++index) {
      if (random_.chance(pauses_percent_)) pause();
      const bool polls = order_ == Order::kByWorker && style_ == Style::kSubmitAllThenWait &&
                         index + 1 < batches.size() && !open_calls_.empty() &&
                         batches[index].size() + batches[index + 1].size() == 2 &&
                         random_.chance(4);
      if (polls) {
        has_polls_ = true;
        const int polled = random_.pick(open_calls_);
        actions_.emplace_back(
            SubmitInPolledOrder{polled, batches[index][0], batches[index + 1][0]});
        open_calls_.push_back(batches[index][0]);
        open_calls_.push_back(batches[++index][0]);
        continue;
      }
      submit(batches[index]);
      if (style_ == Style::kSubmitAllThenWait || style_ == Style::kOverlapping) continue;
      while (open_calls_.size() > window) wait(open_calls_.front());
    }
    if (style_ != Style::kOverlapping) wait_for_all();
  }

  // Only one call of a name may be in flight, so the program first waits for an earlier call of the
  // same name.
  void submit(const std::vector<int>& batch) {
    for (const int number : batch) {
      const auto same = [&](int other) {
        return script_.call(other).group == script_.call(number).group &&
               script_.call(other).common.name == script_.call(number).common.name;
      };
      while (std::ranges::any_of(open_calls_, same)) wait(*std::ranges::find_if(open_calls_, same));
    }
    if (batch.size() == 1)
      actions_.emplace_back(Submit{batch.front(), random_.chance(1)});
    else
      actions_.emplace_back(SubmitBatch{batch});
    open_calls_.insert(open_calls_.end(), batch.begin(), batch.end());
  }

  void wait(int number) {
    if (std::erase(open_calls_, number) > 0) actions_.emplace_back(Wait{number});
  }

  void wait_for_all() {
    if (order_ == Order::kByWorker) random_.shuffle(open_calls_);
    while (!open_calls_.empty()) wait(open_calls_.back());
  }

  void pause() {
    const Time time = random_.between(1, 5) * script_.delay_max;
    script_.pauses += time;
    actions_.emplace_back(Pause{time, random_.chance(30)});
  }

  void set_expectations() {
    if (forgets_names_) return;
    const bool may_fuse = std::ranges::any_of(
        script_.options, [](const auto& options) { return options.fusion_bytes > 0; });
    if (order_ != Order::kByWorker && !is_disturbed_ && !may_fuse) {
      script_.repeats_from = 0;
      script_.must_fall_silent = true;
      return;
    }
    const int first = disturbed_iterations_ + kIterationsToLearn;
    if (is_large_ || !all_transitions_known_from(first)) return;
    script_.repeats_from = first;
    // If the program waits after each call, and the order of the calls changes, each call is a
    // stage of its own. Any call may then follow any other.
    const bool any_may_follow = style_ == Style::kInTurn && order_ != Order::kFixed;
    // A poll that returns true counts as a wait. The random times decide which poll returns true.
    const bool waits_by_chance = has_polls_ && may_fuse;
    script_.must_fall_silent =
        style_ != Style::kOverlapping && !any_may_follow && !waits_by_chance && !has_shared_calls();
  }

  // Whether two different stages share some of their calls. A member that has submitted only the
  // shared part cannot know in which of these stages it is, so it may mispredict.
  bool has_shared_calls() const {
    std::map<std::pair<int, std::string>, std::set<std::pair<int, std::string>>> stage_of;
    for (const auto& variant : variants_)
      for (const auto& stage : variant) {
        std::set<std::pair<int, std::string>> calls;
        for (const auto& batch : stage) add_names(batch, calls);
        const auto differs = [&](const auto& call) {
          return stage_of.emplace(call, calls).first->second != calls;
        };
        if (std::ranges::any_of(calls, differs)) return true;
      }
    return false;
  }

  static void add_names(const BatchTemplate& batch, std::set<std::pair<int, std::string>>& names) {
    for (const auto& [group, signature] : batch) names.emplace(group, signature.name);
  }

  // Returns whether the group has learned all transitions between variants before `iteration`. A
  // transition that occurs in this or a later iteration must have occurred at least four times
  // before.
  bool all_transitions_known_from(int iteration) const {
    std::map<std::pair<int, int>, int> times_seen;
    for (int number = disturbed_iterations_ + 1; number < static_cast<int>(pattern_.size());
         ++number) {
      const auto index = static_cast<std::size_t>(number);
      const std::pair edge(pattern_[index - 1], pattern_[index]);
      if (number >= iteration && times_seen[edge] < 4) return false;
      ++times_seen[edge];
    }
    return true;
  }

  Random& random_;
  Script& script_;
  bool is_large_;
  Style style_;
  Order order_;
  // If true, the name table holds fewer names than the job uses, so plans lose names.
  bool forgets_names_ = false;
  std::vector<Variant> variants_;
  std::map<std::pair<int, std::string>, Signature> signatures_;  // by group and name
  std::vector<int> pattern_;
  int interruptions_percent_ = 0;
  // How many iterations at the beginning may have unpredictable calls.
  int disturbed_iterations_ = 0;
  bool is_disturbed_ = false;
  bool has_polls_ = false;
  // The next fields are only for the program that is being written.
  int pauses_percent_ = 0;
  std::vector<int> open_calls_;               // submitted, not waited for
  std::vector<int> calls_of_last_iteration_;  // the calls in open_calls_ of the previous iteration
  std::vector<Action> actions_;
};

}  // namespace

void write_loop_script(Random& random, Script& script) { LoopWriter(random, script).write(); }

}  // namespace farandole::sim
