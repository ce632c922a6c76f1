#include "network.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace farandole::sim {

void Timeline::add(Time time, Event event) {
  CHECK(time >= now_, "no event is added in the past");
  entries_.push({time, events_added_++, event});
}

std::optional<Event> Timeline::take_next() {
  if (entries_.empty()) return std::nullopt;
  const auto entry = entries_.top();
  entries_.pop();
  now_ = entry.time;
  return entry.event;
}

Network::Network(const Hosts& hosts, Timeline& timeline, Random& random, Referee& referee,
                 Taps taps)
    : hosts_(hosts),
      timeline_(timeline),
      random_(random),
      referee_(referee),
      taps_(std::move(taps)),
      delay_max_(static_cast<int>(hosts.script().delay_max)),
      entries_in_flight_(hosts.script().groups.size()) {
  for (const auto& options : hosts.script().options) watches_.emplace_back(options.names_max);
}

void Network::send(Envelope envelope) {
  referee_.record_message();
  if (const auto problem = watch(envelope.group).check_sent(envelope); !problem.empty())
    referee_.report_problem(problem);
  if (!taps_.messages) {
    enqueue(std::move(envelope));
    return;
  }
  for (auto& replacement : taps_.messages(std::move(envelope))) enqueue(std::move(replacement));
}

// Draws the time at which a message or frame that is sent now arrives. If it is sent during a
// partition, or is on its way when a partition begins, it arrives after the partition.
Time Network::draw_arrival_time(int from_host, int to_host, Traffic traffic) {
  const auto& script = hosts_.script();
  Time sent = timeline_.now();
  if (from_host == to_host)
    return sent + random_.between(0, script.hosts.empty() ? delay_max_ : delay_max_ / 4);
  const int delay_max = delay_max_ * script.delay_factors.at(static_cast<std::size_t>(traffic));
  Time time = sent + random_.between(0, delay_max);
  for (const auto& partition : script.partitions) {  // in the order of their beginnings
    if (partition.from != from_host || partition.to != to_host ||
        partition.traffic.value_or(traffic) != traffic)
      continue;
    if (time < partition.begin || sent >= partition.end) continue;
    time = std::max(time, partition.end + random_.between(0, delay_max));
    sent = partition.end;
    partitions_used_.insert(&partition);
  }
  return time;
}

void Network::enqueue(Envelope envelope) {
  ++messages_;
  auto& channel = channels_[{envelope.group, envelope.from, envelope.to}];
  const auto& ranks = hosts_.script().members(envelope.group);
  const auto host_of = [&](int member) {
    return hosts_.host_of(ranks[static_cast<std::size_t>(member)]);
  };
  channel.last_arrival =
      std::max(channel.last_arrival,
               draw_arrival_time(host_of(envelope.from), host_of(envelope.to), Traffic::kMessages));
  channel.messages.push_back(std::move(envelope.bytes));
  timeline_.add(channel.last_arrival, Deliver{envelope.group, envelope.from, envelope.to});
}

void Network::send_frame(const RoutedFrame& frame) {
  if (!taps_.frames) {
    enqueue(frame);
    return;
  }
  for (const auto& replacement : taps_.frames(frame)) enqueue(replacement);
}

void Network::enqueue(const RoutedFrame& frame) {
  const auto& parts = hosts_.parts(frame.group);
  auto& channel = frame_channels_[{frame.group, frame.from, frame.to, frame.is_entry()}];
  const Time time = draw_arrival_time(parts[static_cast<std::size_t>(frame.from)].host,
                                      parts[static_cast<std::size_t>(frame.to)].host,
                                      frame.is_entry() ? Traffic::kEntries : Traffic::kMessages);
  channel.last_arrival = std::max(channel.last_arrival, time);
  channel.frames.push_back(frame.frame);
  if (frame.is_entry()) ++entries_in_flight_[static_cast<std::size_t>(frame.group)];
  timeline_.add(channel.last_arrival,
                DeliverFrame{frame.group, frame.from, frame.to, frame.is_entry()});
}

RoutedFrame Network::take_frame(const DeliverFrame& arrive) {
  auto& frames = frame_channels_[{arrive.group, arrive.from, arrive.to, arrive.is_entry}].frames;
  CHECK(!frames.empty(), "each DeliverFrame event has a frame");
  RoutedFrame frame{arrive.group, arrive.from, arrive.to, frames.front()};
  frames.pop_front();
  if (frame.is_entry()) --entries_in_flight_[static_cast<std::size_t>(arrive.group)];
  return frame;
}

void Network::send_death(int from_host, int to_host, int worker) {
  timeline_.add(draw_arrival_time(from_host, to_host, Traffic::kMessages),
                NotifyHostOfDeath{to_host, worker});
}

// Most writes become visible without a delay, because a store becomes visible much faster than a
// message arrives.
void Network::schedule_settles(int group, int member, int count) {
  auto& last = last_settle_times_[{group, member}];
  for (; count > 0; --count) {
    const Time delay = random_.chance(70) ? 0 : random_.between(0, delay_max_);
    last = std::max(last, timeline_.now() + delay);
    timeline_.add(last, Settle{group, member});
  }
}

Time Network::settled_at(int group, int member) const {
  const auto last = last_settle_times_.find({group, member});
  return last == last_settle_times_.end() ? 0 : last->second;
}

Envelope Network::take(const Deliver& deliver) {
  auto& messages = channels_[{deliver.group, deliver.from, deliver.to}].messages;
  CHECK(!messages.empty(), "each Deliver has a message");
  Envelope envelope{deliver.group, deliver.from, deliver.to, std::move(messages.front())};
  messages.pop_front();
  if (const auto problem = watch(envelope.group).check_arrived(envelope); !problem.empty())
    referee_.report_problem(problem);
  return envelope;
}

}  // namespace farandole::sim
