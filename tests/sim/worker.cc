#include "worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "coordination/messages.h"
#include "wire_watch.h"

namespace farandole::sim {
namespace {

std::string shown(const std::string& name) { return shortened(name, 30); }

bool holds_a_join(const Bytes& message) {
  const auto announcements = decode_announcements(message);
  return announcements.ok() && std::ranges::any_of(*announcements, [](const auto& announcement) {
           return std::holds_alternative<AnnounceJoin>(announcement);
         });
}

}  // namespace

SimulatedWorker::SimulatedWorker(int number, Surroundings& surroundings)
    : number_(number), around_(surroundings) {
  const auto& script = around_.script;
  for (int group = 0; group < static_cast<int>(script.groups.size()); ++group) {
    const auto member = script.member_of(group, number);
    if (!member) continue;
    Seat seat{.group = group,
              .member = *member,
              .agreement = {},
              .inbox = {},
              .in_flight = {},
              .queue = {}};
    seat.agreement =
        std::make_unique<Agreement>(*member, script.groups[static_cast<std::size_t>(group)],
                                    script.names_max[static_cast<std::size_t>(group)]);
    seats_.emplace(group, std::move(seat));
  }
}

const std::vector<Action>& SimulatedWorker::program() const {
  return around_.script.programs[static_cast<std::size_t>(number_)];
}

void SimulatedWorker::wake(int worker, Time at_least) {
  const Time delay = around_.random.between(0, static_cast<int>(around_.script.delay_max));
  around_.timeline.add(std::max(around_.timeline.now() + delay, at_least), Run{worker});
}

void SimulatedWorker::receive(const Envelope& envelope) {
  if (!alive_ || dead_) return;
  seats_.at(envelope.group).inbox.emplace_back(envelope.from, envelope.bytes);
  wake(number_);
}

void SimulatedWorker::run() {
  const Time now = around_.timeline.now();
  if (!alive_ || now < stopped_until_) return;  // a Run for the end of the stop is on its way
  while (progress()) {
  }
  const bool pausing = now < resume_at_;
  if (!pausing && !finished() && step_program()) wake(number_);
  for (auto& [group, seat] : seats_) send_messages(seat);
}

void SimulatedWorker::die() {
  if (!alive_) return;
  alive_ = false;
  around_.story.tell(around_.timeline.now(), "worker {} dies", number_);
}

void SimulatedWorker::learn(int dead) {
  if (!alive_ || dead_) return;
  if (around_.timeline.now() < stopped_until_) {
    around_.timeline.add(stopped_until_, Learn{number_, dead});
    return;
  }
  around_.story.tell(around_.timeline.now(), "worker {} learns that worker {} is dead", number_,
                     dead);
  while (progress()) {
  }
  dead_ = dead;
  for (auto& [group, seat] : seats_) {
    for (const auto& [name, call] : seat.in_flight) around_.referee.lost(number_, call);
    for (const auto& [step, call] : seat.queue)
      if (call >= 0) around_.referee.lost(number_, call);
    seat.in_flight.clear();
    seat.queue.clear();
  }
  wake(number_, resume_at_);
}

bool SimulatedWorker::progress() {
  bool again = false;
  if (dead_) return again;
  for (auto& [group, seat] : seats_) {
    again = take_messages(seat) || again;
    if (around_.random.chance(50)) send_messages(seat);
    again = take_decisions(seat) || again;
    again = run_steps(seat) || again;
  }
  return again && !around_.referee.problem();
}

bool SimulatedWorker::take_messages(Seat& seat) {
  const bool some = !seat.inbox.empty();
  for (; !seat.inbox.empty(); seat.inbox.pop_front()) {
    const auto& [from, bytes] = seat.inbox.front();
    const auto status = seat.agreement->receive(from, bytes);
    if (!status.ok()) around_.referee.blow(status.message());
    if (seat.member != 0 || !holds_a_join(bytes)) continue;
    const auto& members = around_.script.groups[static_cast<std::size_t>(seat.group)];
    around_.referee.join_reached(seat.group, members[static_cast<std::size_t>(from)]);
  }
  return some;
}

bool SimulatedWorker::take_decisions(Seat& seat) {
  reach_coordinator(seat);
  bool some = false;
  while (auto decision = seat.agreement->next_decision()) {
    some = true;
    if (auto* release = std::get_if<Release>(&*decision);
        release != nullptr && around_.flaws.releases_name_the_first_member)
      release->last_rank = around_.script.groups[static_cast<std::size_t>(seat.group)].front();
    if (!take(seat, *decision)) return false;
  }
  return some;
}

// An agreement hands our own join to the coordinator beside it when it is asked for something.
void SimulatedWorker::reach_coordinator(Seat& seat) {
  if (std::exchange(seat.joins, false)) around_.referee.join_reached(seat.group, number_);
}

bool SimulatedWorker::take(Seat& seat, const Decision& decision) {
  const Time now = around_.timeline.now();
  if (std::holds_alternative<Pass>(decision)) {
    around_.referee.decided(seat.group, number_, -1, decision);
    return true;
  }
  const auto* step = std::get_if<Step>(&decision);
  const auto& name =
      std::visit([](const auto& what) -> const std::string& { return what.name; }, decision);
  int call = -1;
  if (step == nullptr || !step->joined) {
    const auto found = seat.in_flight.find(name);
    if (found == seat.in_flight.end()) {
      around_.referee.blow(
          fmt::format("worker {} gets a decision about `{}`, not in flight", number_, shown(name)));
      return false;
    }
    call = found->second;
    seat.in_flight.erase(found);
  }
  around_.referee.decided(seat.group, number_, call, decision);
  if (step != nullptr) {
    around_.story.tell(now, "worker {} gets step {} of group {}: `{}`, id {}{}", number_,
                       step->sequence, seat.group, shown(name), step->id,
                       step->joined ? ", as it has joined" : "");
    seat.queue.emplace_back(*step, call);
  } else if (const auto* refusal = std::get_if<Refusal>(&decision)) {
    around_.story.tell(now, "worker {} is refused call {} of group {}: {}", number_, call,
                       seat.group, refusal->status.message());
    around_.referee.refused(number_, call);
  } else {
    around_.story.tell(now, "worker {} is released in group {}, rank {} was the last to join",
                       number_, seat.group, std::get<Release>(decision).last_rank);
    around_.referee.released(number_, call);
  }
  return true;
}

bool SimulatedWorker::run_steps(Seat& seat) {
  if (seat.queue.empty()) return false;
  if (!seat.entered) enter(seat);
  const auto& [step, call] = seat.queue.front();
  const auto members =
      static_cast<int>(around_.script.groups[static_cast<std::size_t>(seat.group)].size());
  const int wanted =
      members > 1 && around_.flaws.completes_before_the_last_entered ? members - 1 : members;
  if (around_.referee.entries(seat.group, step.sequence) < wanted) return false;

  const auto sum = around_.referee.sum(seat.group, step.sequence);
  around_.story.tell(around_.timeline.now(), "worker {} completes step {} of group {}: {}", number_,
                     step.sequence, seat.group, sum);
  if (call >= 0) around_.referee.done(number_, call, sum);
  seat.queue.pop_front();
  seat.entered = false;
  return true;
}

void SimulatedWorker::enter(Seat& seat) {
  const auto& [step, call] = seat.queue.front();
  const auto& members = around_.script.groups[static_cast<std::size_t>(seat.group)];
  seat.entered = true;
  const bool has_data = call >= 0 || around_.flaws.the_joined_bring_data;
  const auto value = has_data ? Call::value(call, number_) : 0;
  around_.referee.entered(seat.group, number_, step, value);
  around_.story.tell(around_.timeline.now(), "worker {} enters step {} of group {} with {}",
                     number_, step.sequence, seat.group, value);
  if (around_.referee.entries(seat.group, step.sequence) < static_cast<int>(members.size())) return;
  for (const int other : members)
    if (other != number_) wake(other);
}

void SimulatedWorker::send_messages(Seat& seat) {
  if (dead_) return;
  reach_coordinator(seat);
  while (auto message = seat.agreement->next_message()) {
    around_.story.tell(around_.timeline.now(), "worker {} sends to member {} of group {}: {}",
                       number_, message->to, seat.group, words_of(message->bytes));
    around_.network.send({seat.group, seat.member, message->to, std::move(message->bytes)});
    if (around_.random.chance(5)) {  // the rest later; in between this worker may die
      wake(number_);
      return;
    }
  }
}

// Runs some actions; true when there is a reason to look again soon: the program goes on, or what
// it submitted may have decided something here.
bool SimulatedWorker::step_program() {
  bool some = false;
  for (int count = around_.random.between(1, 4); count > 0 && !finished(); --count) {
    const auto& action = program()[next_action_];
    if (!std::visit([this](const auto& what) { return act(what); }, action)) break;
    ++next_action_;
    some = true;
    if (around_.timeline.now() < resume_at_) break;
  }
  return some;
}

bool SimulatedWorker::act(const Submit& action) {
  submit(action.call, action.twice);
  return true;
}

bool SimulatedWorker::act(const SubmitByPoll& action) {
  const bool done = around_.referee.outcome(number_, action.polled) != Outcome::kInFlight;
  submit(done ? action.first : action.second, false);
  submit(done ? action.second : action.first, false);
  return true;
}

bool SimulatedWorker::act(const Wait& action) {
  return around_.referee.outcome(number_, action.call) != Outcome::kInFlight;
}

bool SimulatedWorker::act(const Pause& action) {
  resume_at_ = around_.timeline.now() + action.time;
  if (action.stopped) stopped_until_ = resume_at_;
  around_.timeline.add(resume_at_, Run{number_});
  return true;
}

void SimulatedWorker::submit(int number, bool twice) {
  const auto& call = around_.script.calls[static_cast<std::size_t>(number)];
  const auto& signature = call.of(number_);
  auto& seat = seats_.at(call.group);
  around_.referee.submitted(number_, number);
  if (dead_) {
    around_.referee.lost(number_, number);
    return;
  }
  around_.story.tell(around_.timeline.now(), "worker {} submits call {} to group {}: `{}`", number_,
                     number, call.group, shown(signature.name));
  const auto status = seat.agreement->submit(signature);
  if (!status.ok()) around_.referee.blow(status.message());
  seat.in_flight.emplace(signature.name, number);
  seat.joins = seat.member == 0 && call.is_join();
  if (twice) {
    const auto again = seat.agreement->submit(call.common);
    if (again.code() != StatusCode::kFixCall ||
        again.message().find(call.is_join() ? "has joined" : "in flight") == std::string::npos)
      around_.referee.blow(fmt::format("worker {}: call {} twice is no error", number_, number));
  }
  if (around_.random.chance(50)) send_messages(seat);
}

std::string SimulatedWorker::waiting_for() const {
  if (finished()) return fmt::format("worker {} has finished", number_);
  const auto* wait = std::get_if<Wait>(&program()[next_action_]);
  if (wait == nullptr) return fmt::format("worker {} is in action {}", number_, next_action_);
  const auto& call = around_.script.calls[static_cast<std::size_t>(wait->call)];
  return fmt::format("worker {} waits for call {} (`{}` of group {})", number_, wait->call,
                     shown(call.common.name), call.group);
}

}  // namespace farandole::sim
