#include "scale.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/format.h"
#include "coordination/agreement.h"
#include "random.h"

namespace farandole::sim {
namespace {

constexpr int kStepsMax = 64;
constexpr int kTensors = 32;

using Clock = std::chrono::steady_clock;

// All members of one group, with the messages between them.
class SimulatedGroup {
 public:
  SimulatedGroup(int members, int hosts, int tensors, std::int64_t fusion_bytes) : random_(1) {
    std::vector<int> ranks(static_cast<std::size_t>(members));
    std::iota(ranks.begin(), ranks.end(), 0);
    std::vector<int> host_of;
    for (const int rank : ranks) host_of.push_back(rank / (members / hosts));
    for (int member = 0; member < members; ++member)
      members_.push_back(std::make_unique<Member>(
          member, ranks, AgreementOptions{.fusion_bytes = fusion_bytes}, host_of));
    for (int tensor = 0; tensor < tensors; ++tensor) {
      Signature signature;
      signature.name = format_text("layer{}.weight", tensor);
      signature.operation = Operation::kAllreduce;
      signature.dtype = DType::kFloat32;
      signature.dimensions = {256};
      known_.emplace_back(signature);
    }
  }

  StepCost step(bool in_one_order) {
    cost_ = {};
    ++steps_;
    const auto begin = Clock::now();
    coordinator_time_ = {};
    std::vector<std::size_t> order(known_.size());
    std::iota(order.begin(), order.end(), 0);
    for (auto& member : members_) {
      if (!in_one_order) random_.shuffle(order);
      member->hops = 0;
      member->messages = 0;
      submit(*member, order);
    }
    completed_ = 0;
    while (completed_ < known_.size()) {
      const bool has_messages = exchange();
      if (!enter() && !has_messages) advance_time();
    }
    exchange();
    for (const auto& member : members_) {
      cost_.hops = std::max(cost_.hops, member->hops);
      cost_.busiest_member_messages = std::max(cost_.busiest_member_messages, member->messages);
    }
    const auto nanoseconds = std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
    cost_.time_per_rank_ns = nanoseconds / static_cast<double>(members_.size());
    cost_.coordinator_time_ns = std::chrono::duration<double, std::nano>(coordinator_time_).count();
    return cost_;
  }

 private:
  struct Member {
    Member(int our_number, const std::vector<int>& ranks, const AgreementOptions& options,
           const std::vector<int>& hosts)
        : number(our_number), agreement(our_number, ranks, options, hosts) {}

    int number;
    Agreement agreement;
    const Decision* entered = nullptr;
    int hops = 0;
    std::uint64_t messages = 0;
  };
  struct SentMessage {
    int from;
    int to;
    int hops;
    Bytes bytes;
  };

  // Runs `function` for a member. If this member is the coordinator, adds the time of the run to
  // coordinator_time_.
  template <class Function>
  auto timed(const Member& member, Function function) {
    if (member.number != 0) return function();
    const auto begin = Clock::now();
    const TimeAdder adder{coordinator_time_, begin};
    return function();
  }
  struct TimeAdder {
    Clock::duration& total;
    Clock::time_point begin;
    ~TimeAdder() { total += Clock::now() - begin; }
  };

  void submit(Member& member, const std::vector<std::size_t>& order) {
    const SubmissionContext context{.waits = steps_ * static_cast<std::uint32_t>(known_.size()),
                                    .quiescent_points = steps_};
    timed(member, [&] {
      for (const auto tensor : order) {
        member.agreement.submit(tensor, known_[tensor], context, now_);
      }
    });
  }

  // No message is on its way, so the time advances to the earliest deadline of a member.
  void advance_time() {
    std::optional<TimePoint> next;
    for (const auto& member : members_)
      if (const auto deadline = member->agreement.deadline())
        next = std::min(next.value_or(*deadline), *deadline);
    CHECK(next.has_value(), "a member has a deadline");
    now_ = *next;
    for (auto& member : members_) timed(*member, [&] { member->agreement.tick(now_); });
  }

  // Delivers messages until none is left. Returns true if there were any.
  bool exchange() {
    bool has_exchanged = false;
    do {
      for (auto& member : members_) collect(*member);
      has_exchanged = has_exchanged || !network_.empty();
      for (; !network_.empty(); network_.pop_front()) deliver(network_.front());
      for (auto& member : members_) collect(*member);
    } while (!network_.empty());
    return has_exchanged;
  }

  void collect(Member& member) {
    timed(member, [&] {
      while (auto message = member.agreement.next_message()) {
        ++cost_.messages;
        ++member.messages;
        cost_.bytes += message->bytes.size();
        if (member.number == 0 || message->to == 0)
          cost_.coordinator_bytes += message->bytes.size();
        network_.push_back(
            {member.number, message->to, member.hops + 1, std::move(message->bytes)});
      }
    });
  }

  void deliver(const SentMessage& message) {
    auto& member = *members_[static_cast<std::size_t>(message.to)];
    ++member.messages;
    member.hops = std::max(member.hops, message.hops);
    timed(member, [&] {
      const auto status = member.agreement.receive(message.from, message.bytes, now_);
      CHECK(status.ok(), "the messages are right");
    });
  }

  // Lets all members enter. If all have entered the same step number, compares their
  // entries. Returns true if something happened.
  bool enter() {
    bool has_entered = false;
    for (auto& member : members_) {
      if (timed(*member, [&] { return member->agreement.take_rollback(); }))
        member->entered = nullptr;
      if (member->entered != nullptr) continue;
      member->entered = timed(*member, [&] { return member->agreement.next_decision(); });
      has_entered = has_entered || member->entered != nullptr;
    }
    const auto* first = std::get_if<Step>(members_.front()->entered);
    if (first == nullptr) return has_entered;
    bool alike = true;
    for (const auto& member : members_) {
      if (member->entered == nullptr) return has_entered;
      const auto& step = std::get<Step>(*member->entered);
      if (!(step.step_number == first->step_number)) return has_entered;
      alike = alike && step.identity == first->identity;
    }
    if (alike)
      complete(first->call_ids.size());
    else
      report_misprediction();
    return true;
  }

  // A member that has completed a step has heard from all others, so the longest chain of messages
  // counts for all members.
  void complete(std::size_t tensors) {
    int hops = 0;
    for (const auto& member : members_) hops = std::max(hops, member->hops);
    for (auto& member : members_) {
      member->hops = hops;
      member->entered = nullptr;
      timed(*member, [&] { member->agreement.record_completion(); });
    }
    completed_ += tensors;
    mispredicted_ = 0;
  }

  void report_misprediction() {
    CHECK(++mispredicted_ < 3, "a misprediction is over soon");
    for (auto& member : members_) timed(*member, [&] { member->agreement.record_misprediction(); });
  }

  Random random_;
  std::vector<InternedSignature> known_;
  std::vector<std::unique_ptr<Member>> members_;
  std::deque<SentMessage> network_;
  TimePoint now_;
  std::uint32_t steps_ = 0;
  std::size_t completed_ = 0;  // tensors that are completed in this step
  int mispredicted_ = 0;
  StepCost cost_;
  Clock::duration coordinator_time_ = {};
};

std::uint64_t log2_rounded_up(int members) {
  return static_cast<std::uint64_t>(std::bit_width(static_cast<unsigned>(members - 1)));
}

std::string row(int members, int hosts, const std::string& name, const StepCost& cost) {
  return format_text("| {} | {} | {} | {} | {} | {} | {} | {} | {:.1f} | {:.1f} |\n", members,
                     hosts, name, cost.messages, cost.busiest_member_messages, cost.hops,
                     cost.bytes, cost.coordinator_bytes, cost.time_per_rank_ns / 1000,
                     cost.coordinator_time_ns / 1000);
}

std::string row(int members, const HorovodModel& model) {
  return format_text("| {} | – | {} | {} | {} | {} | {} | – | – | – |\n", members, model.name,
                     model.messages, model.busiest_member_messages, model.hops, model.bytes);
}

}  // namespace

ScaleCosts measure_scale(int members, int tensors, int hosts) {
  CHECK(members % hosts == 0, "each host has as many members");
  ScaleCosts costs;
  {
    SimulatedGroup in_one_order(members, hosts, tensors, 0);
    for (int warm_up = 0; warm_up < 2; ++warm_up) in_one_order.step(true);
    costs.predicted = in_one_order.step(true);
  }
  SimulatedGroup group(members, hosts, tensors, 1 << 20);
  costs.misprediction = group.step(false);
  costs.learning = group.step(false);
  for (int silent = 0; silent < 3;) {
    costs.planned = group.step(false);
    ++costs.steps_to_plan;
    silent = costs.planned.messages == 0 ? silent + 1 : 0;
    CHECK(costs.steps_to_plan < kStepsMax, "the plan is learned soon");
  }
  costs.steps_to_plan -= 3 - 2;  // the loop counts three silent steps; two steps came before these
  return costs;
}

HorovodModel horovod_cached_mpi(int members) {
  constexpr std::uint64_t kBitVectorBytes = 136;  // 17 words: 1,024 bits and three flags
  const auto p = static_cast<std::uint64_t>(members);
  const auto hops = log2_rounded_up(members);
  return {"Horovod, cached, MPI (model)", p * hops, 2 * hops, p * hops * kBitVectorBytes, hops};
}

HorovodModel horovod_cached_gloo(int members) {
  constexpr std::uint64_t kBitVectorBytes = 136;
  const auto p = static_cast<std::uint64_t>(members);
  const auto hops = 2 * (p - 1);
  return {"Horovod, cached, Gloo (model)", p * hops, 2 * hops, hops * kBitVectorBytes, hops};
}

HorovodModel horovod_uncached_mpi(int members, int tensors) {
  constexpr std::uint64_t kMessageBytes = 80;  // the size of a request or response for one tensor
  const auto p = static_cast<std::uint64_t>(members);
  const auto list = static_cast<std::uint64_t>(tensors) * kMessageBytes;
  return {"Horovod, uncached, MPI (model)", 4 * (p - 1), 2 * (p - 1) + 2 * log2_rounded_up(members),
          2 * (p - 1) * (list + 4), 4 * log2_rounded_up(members)};
}

std::string scale_report(int members_max) {
  std::string text = format_text(
      "One training step of {} tensors of 1 KiB; all are submitted, then waited for.\n\n"
      "| members | hosts | way | messages | of the busiest member | hops | bytes | bytes of the "
      "coordinator | µs per rank | µs of the coordinator |\n"
      "| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
      kTensors);
  constexpr std::pair<int, int> kSizes[] = {{8, 1},    {64, 1},     {64, 8},
                                            {1024, 1}, {1024, 16},  {1024, 128},
                                            {8192, 1}, {8192, 128}, {8192, 1024}};
  for (const auto& [members, hosts] : kSizes) {
    if (members > members_max) break;
    const auto costs = measure_scale(members, kTensors, hosts);
    text += row(members, hosts, "predicted", costs.predicted);
    text += row(members, hosts, "planned", costs.planned);
    text += row(members, hosts, "learning", costs.learning);
    text += row(members, hosts, "the first misprediction", costs.misprediction);
    if (hosts > 1) continue;
    text += row(members, horovod_cached_mpi(members));
    text += row(members, horovod_cached_gloo(members));
    text += row(members, horovod_uncached_mpi(members, kTensors));
  }
  return text;
}

}  // namespace farandole::sim
