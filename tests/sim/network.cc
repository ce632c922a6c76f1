#include "network.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace farandole::sim {

void Timeline::add(Time time, Event event) {
  CHECK(time >= now_, "no event is added in the past");
  entries_.push({time, number_++, event});
}

std::optional<Event> Timeline::next() {
  if (entries_.empty()) return std::nullopt;
  const auto entry = entries_.top();
  entries_.pop();
  now_ = entry.time;
  return entry.event;
}

Network::Network(const Script& script, Timeline& timeline, Random& random, Referee& referee,
                 Tap tap)
    : timeline_(timeline),
      random_(random),
      referee_(referee),
      tap_(std::move(tap)),
      delay_max_(static_cast<int>(script.delay_max)) {
  for (const auto& options : script.options) watches_.emplace_back(options.names_max);
}

void Network::send(Envelope envelope) {
  referee_.sent();
  if (const auto problem = watch(envelope.group).sent(envelope); !problem.empty())
    referee_.report_problem(problem);
  if (!tap_) {
    enqueue(std::move(envelope));
    return;
  }
  for (auto& instead : tap_(std::move(envelope))) enqueue(std::move(instead));
}

void Network::enqueue(Envelope envelope) {
  ++messages_;
  auto& channel = channels_[{envelope.group, envelope.from, envelope.to}];
  const Time arrival = timeline_.now() + random_.between(0, delay_max_);
  channel.last_arrival = std::max(channel.last_arrival, arrival);
  channel.messages.push_back(std::move(envelope.bytes));
  timeline_.add(channel.last_arrival, Deliver{envelope.group, envelope.from, envelope.to});
}

// Most writes settle at once, because a store becomes visible much faster than a message arrives.
void Network::settle(int group, int member, int writes) {
  auto& last = settled_last_[{group, member}];
  for (; writes > 0; --writes) {
    const Time delay = random_.chance(70) ? 0 : random_.between(0, delay_max_);
    last = std::max(last, timeline_.now() + delay);
    timeline_.add(last, Settle{group, member});
  }
}

Time Network::settled_at(int group, int member) const {
  const auto last = settled_last_.find({group, member});
  return last == settled_last_.end() ? 0 : last->second;
}

Envelope Network::take(const Deliver& deliver) {
  auto& messages = channels_[{deliver.group, deliver.from, deliver.to}].messages;
  CHECK(!messages.empty(), "each Deliver has a message");
  Envelope envelope{deliver.group, deliver.from, deliver.to, std::move(messages.front())};
  messages.pop_front();
  if (const auto problem = watch(envelope.group).arrived(envelope); !problem.empty())
    referee_.report_problem(problem);
  return envelope;
}

}  // namespace farandole::sim
