#include "workloads.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <utility>
#include <variant>

#include "base/format.h"
#include "control/messages.h"
#include "random.h"
#include "simulation.h"

namespace farandole::sim {
namespace {

constexpr int kWorkers = 4;
constexpr Time kDelayMax = 10;  // of a message, a flag or a wake-up; 5 µs on average
constexpr Time kComputeTime = 200;

using Calls = std::vector<int>;

// Writes the programs of all workers at once. A call is made by all members of its group.
class Job {
 public:
  Job(Random& random, Script& script) : random_(random), script_(script) {
    script.workers = kWorkers;
    script.delay_max = kDelayMax;
    script.programs.resize(kWorkers);
    std::vector<int> all(kWorkers);
    std::iota(all.begin(), all.end(), 0);
    add_group(std::move(all));
  }

  Random& random() { return random_; }
  int add_group(std::vector<int> members) {
    script_.groups.push_back(std::move(members));
    script_.options.push_back({.fusion_bytes = 16 << 20});
    return static_cast<int>(script_.groups.size()) - 1;
  }

  int call(std::string name, std::int64_t floats = 256 << 10, int group = 0) {
    Signature signature;
    signature.name = std::move(name);
    signature.operation = Operation::kAllreduce;
    signature.dtype = DType::kFloat32;
    signature.dimensions = {floats};
    return add({group, signature, {}, script_.members(group)});
  }
  // A call that is not fused with the others, because of its dtype.
  int unfused_call(std::string name) {
    const int number = call(std::move(name), 1);
    script_.calls.back().common.dtype = DType::kInt64;
    return number;
  }
  int join() {
    Signature signature;
    signature.name = "join";
    signature.operation = Operation::kJoin;
    return add({0, signature, {}, script_.members(0)});
  }
  // Only `makers` make the call; the other workers have called join().
  int call_of(std::string name, const std::vector<int>& makers, int join) {
    const int number = call(std::move(name));
    auto& made = script_.calls.back();
    made.makers = makers;
    made.join = join;
    for (const int worker : script_.members(0))
      if (!std::ranges::binary_search(makers, worker)) made.joined.push_back(worker);
    return number;
  }
  Calls calls(const std::string& names, int count, std::int64_t floats = 256 << 10) {
    Calls all;
    for (int number = 0; number < count; ++number)
      all.push_back(call(format_text("{}.{}", names, number), floats));
    return all;
  }

  // The next functions add actions of one worker.
  void submit(int worker, int number) {
    if (makes(worker, number)) actions(worker).emplace_back(Submit{number, false});
  }
  void wait(int worker, int number) {
    if (makes(worker, number)) actions(worker).emplace_back(Wait{number});
  }
  void compute(int worker, Time time) {
    script_.pauses += time;
    actions(worker).emplace_back(Pause{time, false});
  }
  // The next functions add actions of every worker.
  void compute(Time time = kComputeTime) {
    for (int worker = 0; worker < kWorkers; ++worker) compute(worker, time + random_.between(0, 9));
  }
  void submit(const Calls& calls) {
    for (int worker = 0; worker < kWorkers; ++worker)
      for (const int number : calls) submit(worker, number);
  }
  // Each worker submits in its own order, as backward hooks and threads do.
  void submit_in_any_order(Calls calls) {
    for (int worker = 0; worker < kWorkers; ++worker) {
      random_.shuffle(calls);
      for (const int number : calls) submit(worker, number);
    }
  }
  // Each worker pauses before each call. Afterwards, `calls` is in the order of the last worker.
  void submit_slowly(Calls& calls, Time between) {
    for (int worker = 0; worker < kWorkers; ++worker) {
      random_.shuffle(calls);
      for (const int number : calls) {
        compute(worker, between);
        submit(worker, number);
      }
    }
  }
  void submit_batch(const Calls& calls) {
    for (int worker = 0; worker < kWorkers; ++worker)
      if (makes(worker, calls.front())) actions(worker).emplace_back(SubmitBatch{calls});
  }
  void wait(const Calls& calls) {
    for (int worker = 0; worker < kWorkers; ++worker)
      for (const int number : calls) wait(worker, number);
  }
  void submit_in_turn(const Calls& calls) {
    for (const int number : calls) {
      submit({number});
      wait({number});
    }
  }
  // A training step: the gradients become ready while the backward pass computes.
  void train(const Calls& gradients) {
    compute();
    submit_in_any_order(gradients);
    wait(gradients);
  }

 private:
  std::vector<Action>& actions(int worker) {
    return script_.programs[static_cast<std::size_t>(worker)];
  }
  bool makes(int worker, int number) const {
    return std::ranges::binary_search(script_.call(number).makers, worker);
  }
  int add(Call call) {
    script_.calls.push_back(std::move(call));
    return static_cast<int>(script_.calls.size()) - 1;
  }

  Random& random_;
  Script& script_;
};

void write_in_one_order(Job& job) {
  for (int step = 0; step < 60; ++step) {
    const auto gradients = job.calls("gradient", 16);
    job.compute();
    job.submit(gradients);
    job.wait(gradients);
  }
}

void write_in_any_order(Job& job) {
  for (int step = 0; step < 60; ++step) job.train(job.calls("gradient", 16));
}

// Buckets are full long before the last gradient is ready.
void write_mixed_sizes(Job& job) {
  for (int step = 0; step < 60; ++step) {
    Calls gradients;
    for (int layer = 0; layer < 32; ++layer) {
      const auto floats = layer % 2 == 0 ? 3 << 19 : 4 << 10;  // 6 MiB and 16 KiB
      gradients.push_back(job.call(format_text("gradient.{}", layer), floats));
      job.compute(kComputeTime / 4);
      job.submit({gradients.back()});
    }
    job.wait(gradients);
  }
}

void write_logging(Job& job) {
  for (int step = 1; step <= 60; ++step) {
    job.train(job.calls("gradient", 16));
    if (step % 10 == 0) job.submit_in_turn(job.calls("metric", 3, 1));
  }
}

void write_printing(Job& job) {
  for (int step = 1; step <= 80; ++step) {
    const int loss = job.call("loss", 1);
    job.submit({loss});
    if (step % 5 == 0) job.wait({loss});
    job.train(job.calls("gradient", 16));
    if (step % 5 != 0) job.wait({loss});
  }
}

void write_printing_on_one_rank(Job& job) {
  for (int step = 1; step <= 80; ++step) {
    const int loss = job.call("loss", 1);
    job.submit({loss});
    if (step % 5 == 0) job.wait(0, loss);
    job.train(job.calls("gradient", 16));
    for (int worker = step % 5 == 0 ? 1 : 0; worker < kWorkers; ++worker) job.wait(worker, loss);
  }
}

// Every 5 steps, the ranks wait for a count between the two halves of the gradients. The ranks
// submit this count before the first half.
void write_counting(Job& job) {
  for (int step = 1; step <= 80; ++step) {
    const auto gradients = job.calls("gradient", 8);
    const Calls first(gradients.begin(), gradients.begin() + 4);
    const Calls second(gradients.begin() + 4, gradients.end());
    const int count = job.unfused_call("count");
    job.submit({count});
    job.compute();
    job.submit_in_any_order(first);
    if (step % 5 == 0) job.wait({count});
    job.submit_in_any_order(second);
    job.wait(gradients);
    if (step % 5 != 0) job.wait({count});
  }
}

// Only rank 0 waits for the loss before it submits the gradients. The call at the end of an epoch
// has a new name.
void write_printing_once_per_epoch(Job& job) {
  for (int epoch = 0; epoch < 12; ++epoch) {
    for (int step = 0; step < 10; ++step) {
      const bool prints = epoch == 0 || step == 0;
      const int loss = prints ? job.call("loss", 1) : -1;
      const auto gradients = job.calls("gradient", 16);
      job.compute();
      if (prints) {
        job.submit({loss});
        job.wait(0, loss);
      }
      job.submit_in_any_order(gradients);
      job.wait(gradients);
      for (int worker = 1; prints && worker < kWorkers; ++worker) job.wait(worker, loss);
    }
    job.submit_in_turn({job.call(format_text("epoch.{}", epoch), 1)});
  }
}

// In the first 10 steps the ranks submit the count after the gradients. In the later steps they
// submit it first, and rank 0 waits for it before it submits the gradients.
void write_counting_first(Job& job) {
  for (int step = 0; step < 80; ++step) {
    auto calls = job.calls("gradient", 8);
    const int count = job.unfused_call("count");
    job.compute();
    if (step >= 10) {
      job.submit({count});
      job.wait(0, count);
    }
    job.submit_in_any_order(calls);
    if (step < 10) job.submit({count});
    job.wait(calls);
    for (int worker = step < 10 ? 0 : 1; worker < kWorkers; ++worker) job.wait(worker, count);
  }
}

void write_evaluation(Job& job) {
  for (int step = 1; step <= 100; ++step) {
    job.train(job.calls("gradient", 16));
    if (step % 20 != 0) continue;
    for (int batch = 0; batch < 5; ++batch) job.train(job.calls("accuracy", 3, 1));
    job.submit_in_turn({job.call("best", 1)});
  }
}

void write_accumulation(Job& job) {
  for (int step = 1; step <= 100; ++step) {
    job.compute();
    const int loss = job.call("loss", 1);
    job.submit_in_turn({loss});
    if (step % 4 == 0) job.train(job.calls("gradient", 16));
  }
}

void write_two_optimizers(Job& job) {
  for (int step = 1; step <= 40; ++step) {
    for (int critic = 0; critic < 2; ++critic) job.train(job.calls("discriminator", 8));
    job.train(job.calls("generator", 8));
  }
}

void write_skipped_layers(Job& job) {
  for (int step = 0; step < 80; ++step) {
    Calls gradients = job.calls("gradient", 8);
    for (int block = 0; block < 3; ++block) {
      if (!job.random().chance(70)) continue;
      for (const int number : job.calls(format_text("block{}", block), 3))
        gradients.push_back(number);
    }
    job.train(gradients);
  }
}

void write_forward_and_backward(Job& job) {
  for (int step = 0; step < 60; ++step) {
    job.submit_in_turn(job.calls("batchnorm", 6, 64));
    job.train(job.calls("gradient", 16));
  }
}

// A program waits for a gradient as late as possible: just before it submits the same gradient of
// the next step.
void submit_after(Job& job, int worker, const Calls& last, const Calls& gradients) {
  std::vector<std::size_t> order(gradients.size());
  std::iota(order.begin(), order.end(), 0);
  job.random().shuffle(order);
  for (const auto index : order) {
    if (!last.empty()) job.wait(worker, last[index]);
    job.compute(worker, 20);
    job.submit(worker, gradients[index]);
  }
}

void write_overlapping(Job& job) {
  Calls last;
  for (int step = 0; step < 60; ++step) {
    const auto gradients = job.calls("gradient", 8);
    for (int worker = 0; worker < kWorkers; ++worker) submit_after(job, worker, last, gradients);
    last = gradients;
  }
  job.wait(last);
}

void write_batches(Job& job) {
  for (int step = 0; step < 60; ++step) {
    job.compute();
    std::array<Calls, 4> groups;
    for (int group = 0; group < 4; ++group)
      groups.at(static_cast<std::size_t>(group)) =
          job.calls(format_text("group{}", group), 6, 384 << 10);
    for (const auto& group : groups) job.submit_batch(group);
    for (const auto& group : groups) job.wait(group);
  }
}

void write_uneven_batches(Job& job) {
  for (int epoch = 0; epoch < 6; ++epoch) {
    for (int step = 0; step < 12; ++step) job.train(job.calls("gradient", 8));
    const int join = job.join();
    for (int extra = 1; extra < kWorkers; ++extra) {
      std::vector<int> makers;
      for (int worker = extra; worker < kWorkers; ++worker) makers.push_back(worker);
      Calls gradients;
      job.submit(extra - 1, join);
      for (int layer = 0; layer < 8; ++layer)
        gradients.push_back(job.call_of(format_text("gradient.{}", layer), makers, join));
      job.train(gradients);
    }
    job.submit(kWorkers - 1, join);
    job.wait({join});
  }
}

void write_no_repetition(Job& job) {
  for (int step = 0; step < 60; ++step) {
    job.train(job.calls(format_text("step{}", step), 8));
  }
}

void write_no_repetition_in_one_order(Job& job) {
  for (int step = 0; step < 60; ++step) {
    job.compute();
    const auto calls = job.calls(format_text("step{}", step), 8);
    job.submit(calls);
    job.wait(calls);
  }
}

void write_two_groups(Job& job) {
  const std::array<int, 2> pairs = {job.add_group({0, 1}), job.add_group({2, 3})};
  for (int step = 0; step < 60; ++step) {
    for (int layer = 0; layer < 4; ++layer) {
      const auto name = format_text("activation.{}", layer);
      job.compute(20);
      for (const int pair : pairs) job.submit_in_turn({job.call(name, 4096, pair)});
    }
    job.train(job.calls("gradient", 16));
  }
}

void write_slow_rank(Job& job) {
  for (int step = 0; step < 60; ++step) {
    auto gradients = job.calls("gradient", 12);
    for (int worker = 0; worker < kWorkers; ++worker) {
      job.random().shuffle(gradients);
      const bool stalls = worker == 3 && job.random().chance(30);
      const int before = stalls ? gradients[static_cast<std::size_t>(job.random().below(12))] : -1;
      for (const int number : gradients) {
        job.compute(worker, number == before ? job.random().between(12, 60) * 1000 : 0);
        job.submit(worker, number);
      }
    }
    job.wait(gradients);
  }
}

void write_slow_layers(Job& job) {
  for (int step = 0; step < 40; ++step) {
    const auto gradients = job.calls("gradient", 8);
    auto order = gradients;
    job.submit_slowly(order, 15000);
    job.wait(gradients);
  }
}

void write_many_tasks(Job& job) {
  for (int step = 0; step < 120; ++step) {
    auto gradients = job.calls("trunk", 6);
    const auto head = format_text("head{}", job.random().below(6));
    for (const int number : job.calls(head, 3)) gradients.push_back(number);
    job.train(gradients);
  }
}

void write_clipped_by_part(Job& job) {
  for (int step = 0; step < 80; ++step) {
    auto all = job.calls("gradient", 12);
    // In each step, the program waits for a random third of the gradients first.
    auto shuffled = all;
    job.random().shuffle(shuffled);
    const Calls first(shuffled.begin(), shuffled.begin() + 4);
    const Calls second(shuffled.begin() + 4, shuffled.end());
    job.compute();
    job.submit_in_any_order(first);
    job.wait(first);
    job.submit_in_any_order(second);
    job.wait(second);
  }
}

void write_averages(Job& job) {
  for (int step = 1; step <= 80; ++step) {
    job.train(job.calls("gradient", 8));
    if (job.random().chance(20)) job.train(job.calls("average", 8));
    if (step % 16 == 0) job.submit_in_turn({job.call("saved", 1)});
  }
}

// After three fast steps, the pause before each gradient grows from 15 to 75 ms in five steps. The
// pauses cause needless raises, which lengthen the grace time. The fast steps after these five
// steps show whether the grace time becomes short again.
void write_slow_at_first(Job& job) {
  for (int step = 0; step < 8; ++step) {
    auto gradients = job.calls("gradient", 4);
    job.submit_slowly(gradients, step < 3 ? 0 : 15000 * (step - 2));
    job.wait(gradients);
  }
  write_clipped_by_part(job);
}

struct Row {
  Workload workload;
  void (*write)(Job& job);
};

constexpr std::array kNamedWorkloads = {
    Row{{"one order", "16 gradients, in the same order on all ranks"}, write_in_one_order},
    Row{{"any order", "16 gradients; their order differs between ranks and from step to step"},
        write_in_any_order},
    Row{{"mixed sizes", "gradients of 6 MiB and of 16 KiB take turns, 50 µs apart, in one order"},
        write_mixed_sizes},
    Row{{"logging", "every 10 steps three metrics; the program waits after each one"},
        write_logging},
    Row{{"printing",
         "waits for the loss and the gradients together; every 5 steps, for the loss first"},
        write_printing},
    Row{{"printing on rank 0", "as before, but only rank 0 waits for the loss first"},
        write_printing_on_one_rank},
    Row{{"printing once per epoch",
         "rank 0 waits for the loss before the gradients: in the first 10 steps, then in one of 10 "
         "steps"},
        write_printing_once_per_epoch},
    Row{{"counting", "every 5 steps waits for a count in the middle of the gradients"},
        write_counting},
    Row{{"counting first", "after 10 steps, rank 0 waits for a count before the gradients"},
        write_counting_first},
    Row{{"evaluation", "every 20 steps five batches of evaluation, with other calls"},
        write_evaluation},
    Row{{"accumulation", "a loss in every step, gradients in every fourth"}, write_accumulation},
    Row{{"two optimizers", "two steps of a discriminator, one of a generator"},
        write_two_optimizers},
    Row{{"skipped layers", "each of three blocks has gradients in some steps, by chance"},
        write_skipped_layers},
    Row{{"many tasks", "a shared trunk, and one of six heads, drawn in each step"},
        write_many_tasks},
    Row{{"averages",
         "parameters are averaged after some steps, by chance, and saved every 16 steps"},
        write_averages},
    Row{{"batch norm", "six calls in turn in the forward pass, then the gradients"},
        write_forward_and_backward},
    Row{{"overlapping",
         "waits for a gradient of the last step just before it submits the same gradient again"},
        write_overlapping},
    Row{{"batches", "four batches (grouped_allreduce) of 9 MiB"}, write_batches},
    Row{{"changing parts", "first waits for four gradients, which differ from step to step"},
        write_clipped_by_part},
    Row{{"slow at first",
         "8 steps, with 15 to 75 ms before each gradient from the 4th step on; then *changing "
         "parts*"},
        write_slow_at_first},
    Row{{"uneven batches", "ranks join one after another, at the end of each epoch"},
        write_uneven_batches},
    Row{{"new names", "every step has new names; the order differs between ranks"},
        write_no_repetition},
    Row{{"new names, one order", "every step has new names, in the same order on all ranks"},
        write_no_repetition_in_one_order},
    Row{{"two groups", "activations in pairs of ranks, gradients among all"}, write_two_groups},
    Row{{"a slow rank", "in some steps, rank 3 stalls for 12 to 60 ms between two gradients"},
        write_slow_rank},
    Row{{"slow layers",
         "15 ms pass before each gradient; the order differs between ranks and from step to step"},
        write_slow_layers},
};

// A tap that changes nothing. It counts the replans of all groups.
Bug replan_counter(std::uint64_t& replans) {
  const auto tap = [&replans](const Script& /*script*/) -> Tap {
    return [&replans](Envelope envelope) -> std::vector<Envelope> {
      if (envelope.from != 0 || envelope.to != 1) return {std::move(envelope)};
      const auto items = decode_stream(envelope.bytes).value();
      for (const auto& item : items) replans += std::holds_alternative<Answer>(item) ? 1U : 0U;
      return {std::move(envelope)};
    };
  };
  return {tap, {}};
}

// The last workload is random: the simulator's loops (loop_script).
constexpr std::size_t kRandom = kNamedWorkloads.size();
constexpr Workload kRandomLoops = {"random loops", "the simulator's loops, 50 times as many seeds"};

Script workload_script(std::size_t number, std::uint64_t seed) {
  if (number == kRandom) return random_script(seed, ScriptKind::kLoop);
  Random random(seed);
  Script script;
  Job job(random, script);
  kNamedWorkloads.at(number).write(job);
  return script;
}

}  // namespace

std::vector<Workload> all_workloads() {
  std::vector<Workload> all;
  for (const auto& row : kNamedWorkloads) all.push_back(row.workload);
  all.push_back(kRandomLoops);
  return all;
}

WorkloadCost measure_workload(std::size_t number, std::uint64_t seeds) {
  WorkloadCost cost;
  if (number == kRandom) seeds *= 50;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const auto result = simulate(workload_script(number, seed), seed, StoryOptions{1},
                                 replan_counter(cost.replans));
    if (result.problem) cost.problems.push_back(format_text("seed {}: {}", seed, *result.problem));
    cost.messages += result.messages;
    cost.steps += result.steps;
    cost.time += result.time;
  }
  return cost;
}

std::string workload_report(std::uint64_t seeds) {
  std::string text =
      "| workload | what the program does | messages | replans | steps | ms |\n"
      "| --- | --- | ---: | ---: | ---: | ---: |\n";
  std::string problems;
  const auto workloads = all_workloads();
  for (std::size_t number = 0; number < workloads.size(); ++number) {
    const auto& [name, program] = workloads[number];
    const auto cost = measure_workload(number, seeds);
    text += format_text("| {} | {} | {} | {} | {} | {} |\n", name, program, cost.messages,
                        cost.replans, cost.steps, cost.time / 1000);
    for (const auto& problem : cost.problems)
      problems += format_text("WRONG: {}, {}\n", name, problem);
  }
  return text + problems;
}

}  // namespace farandole::sim
