// Bugs of leaders, which pass on the control messages of a group with members on several hosts.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "bugs.h"
#include "control/messages.h"

namespace farandole::sim {
namespace {

using Envelopes = std::vector<Envelope>;
using Channel = std::tuple<int, int, int>;  // group, from, to

bool is_stream_of_leader(const Envelope& envelope) {
  return envelope.from != 0 && decode_stream(envelope.bytes).ok();
}

// A tap on the messages by which leaders speak for others. `change` may keep state per channel.
template <class State>
std::function<Tap(const Script&)> relay_tap(
    std::function<void(const Script&, const Envelope&, State&, Announcements&)> change) {
  return [change](const Script& script) -> Tap {
    auto states = std::make_shared<std::map<Channel, State>>();  // shared by all copies of the tap
    return [&script, change, states](Envelope envelope) -> Envelopes {
      auto announcements = decode_announcements(envelope.bytes);
      if (!announcements.ok() || announcements->from == MemberSet(envelope.from))
        return {std::move(envelope)};
      auto& state = (*states)[{envelope.group, envelope.from, envelope.to}];
      change(script, envelope, state, *announcements);
      MessagePacker packer;
      if (!announcements->from.empty())
        for (const auto& item : announcements->items) packer.add(announcements->from, item);
      Envelopes envelopes;
      while (auto bytes = packer.take())
        envelopes.push_back({envelope.group, envelope.from, envelope.to, *std::move(bytes)});
      return envelopes;
    };
  };
}

struct NoState {};

bool announces_calls(const Announcements& announcements) {
  return std::ranges::all_of(announcements.items, [](const auto& item) {
    return std::holds_alternative<AnnounceInFull>(item) ||
           std::holds_alternative<AnnounceById>(item);
  });
}

// Makes the message speak for one more member: the lowest member of the leader's host for which the
// message does not speak yet.
void speak_for_one_more(const Script& script, const Envelope& envelope, NoState& /*state*/,
                        Announcements& announcements) {
  const auto hosts = script.hosts_of(envelope.group);
  if (!announces_calls(announcements)) return;
  for (std::size_t member = 0; member < hosts.size(); ++member) {
    const auto number = static_cast<int>(member);
    if (hosts[member] != hosts[static_cast<std::size_t>(envelope.from)]) continue;
    if (!announcements.from.contains(number)) return announcements.from.insert(number);
  }
}

void leave_one_out(const Script& /*script*/, const Envelope& /*envelope*/, NoState& /*state*/,
                   Announcements& announcements) {
  MemberSet rest;
  const int last = announcements.from.last();
  announcements.from.for_each([&](int member) {
    if (member != last) rest.insert(member);
  });
  announcements.from = rest;
}

void speak_for_the_coordinator(const Script& /*script*/, const Envelope& /*envelope*/,
                               NoState& /*state*/, Announcements& announcements) {
  announcements.from.insert(0);
}

// Replaces each signature by the first one of its name, so that different signatures are merged.
struct Signatures {
  std::map<std::string, Signature> first;
};
void merge_different_signatures(const Script& /*script*/, const Envelope& /*envelope*/,
                                Signatures& known, Announcements& announcements) {
  for (auto& item : announcements.items)
    if (auto* in_full = std::get_if<AnnounceInFull>(&item))
      in_full->signature =
          known.first.emplace(in_full->signature.name, in_full->signature).first->second;
}

struct Reports {
  std::map<std::uint32_t, Report> first;  // by generation
};
void merge_different_reports(const Script& /*script*/, const Envelope& /*envelope*/, Reports& known,
                             Announcements& announcements) {
  for (auto& item : announcements.items)
    if (auto* report = std::get_if<Report>(&item))
      *report = known.first.emplace(report->generation, *report).first->second;
}

void forget_the_quiescent_points(const Script& /*script*/, const Envelope& /*envelope*/,
                                 NoState& /*state*/, Announcements& announcements) {
  for (auto& item : announcements.items)
    if (auto* by_id = std::get_if<AnnounceById>(&item)) by_id->context.quiescent_points = 0;
}

template <class Item>
void lose(const Script& /*script*/, const Envelope& /*envelope*/, NoState& /*state*/,
          Announcements& announcements) {
  std::erase_if(announcements.items,
                [](const auto& item) { return std::holds_alternative<Item>(item); });
}

// A tap that replaces each chosen message by the messages that `change` returns.
std::function<Tap(const Script&)> chosen_message_tap(std::function<bool(const Envelope&)> is_chosen,
                                                     std::function<Envelopes(Envelope)> change) {
  return [is_chosen, change](const Script& /*script*/) -> Tap {
    return [is_chosen, change](Envelope envelope) -> Envelopes {
      if (!is_chosen(envelope)) return {std::move(envelope)};
      return change(std::move(envelope));
    };
  };
}

Envelopes lose_all(const Envelope& /*envelope*/) { return {}; }
Envelopes send_twice(const Envelope& envelope) { return {envelope, envelope}; }

Envelopes reverse_the_stream(const Envelope& envelope) {
  auto items = decode_stream(envelope.bytes).value();
  std::ranges::reverse(items);
  MessagePacker packer;
  for (const auto& item : items) packer.add(item);
  return {{envelope.group, envelope.from, envelope.to, *packer.take()}};
}

// Delivers the chosen messages of a channel in pairs, and the second one of each pair first.
std::function<Tap(const Script&)> swap_pairs(std::function<bool(const Envelope&)> is_chosen) {
  return [is_chosen](const Script& /*script*/) -> Tap {
    auto held_envelopes =
        std::make_shared<std::map<Channel, Envelope>>();  // shared by all copies of the tap
    return [is_chosen, held_envelopes](Envelope envelope) -> Envelopes {
      const Channel channel{envelope.group, envelope.from, envelope.to};
      if (!is_chosen(envelope)) return {std::move(envelope)};
      if (auto earlier = held_envelopes->extract(channel))
        return {std::move(envelope), std::move(earlier.mapped())};
      held_envelopes->emplace(channel, std::move(envelope));
      return {};
    };
  };
}

}  // namespace

std::vector<NamedBug> relay_bugs() {
  const auto acknowledges = [](const Envelope& envelope) {
    return is_acknowledgement(envelope.bytes);
  };
  const auto relays = [](const Envelope& envelope) {
    const auto announcements = decode_announcements(envelope.bytes);
    return announcements.ok() && announcements->from != MemberSet(envelope.from);
  };
  const auto to_odd_members = [](const Envelope& envelope) {
    return is_stream_of_leader(envelope) && envelope.to % 2 == 1;
  };
  std::vector<NamedBug> bugs = {
      {"acknowledgements are lost", {chosen_message_tap(acknowledges, lose_all), {}}, "deadlock"},
      {"an acknowledgement comes twice",
       {chosen_message_tap(acknowledges, send_twice), {}},
       "acknowledges a message that was not sent"},
      {"a leader speaks for a member that has announced nothing",
       {relay_tap<NoState>(speak_for_one_more), {}},
       "a second time"},
      {"a leader leaves a member out", {relay_tap<NoState>(leave_one_out), {}}, "deadlock"},
      {"a leader speaks for a member that is not below it",
       {relay_tap<NoState>(speak_for_the_coordinator), {}},
       "not below its sender"},
      {"a leader merges different signatures",
       {relay_tap<Signatures>(merge_different_signatures), {}},
       "a call that must run is rejected"},
      {"a leader merges different reports",
       {relay_tap<Reports>(merge_different_reports), {}},
       "it says that all have entered decision"},
      {"a leader changes the context of announcements",
       {relay_tap<NoState>(forget_the_quiescent_points), {}},
       "though nothing is new"},
      {"a leader loses raises", {relay_tap<NoState>(lose<Raise>), {}}, "deadlock"},
      {"a leader loses reports", {relay_tap<NoState>(lose<Report>), {}}, "deadlock"},
      {"what a leader has merged comes twice",
       {chosen_message_tap(relays, send_twice), {}},
       "sends another item after its report"},
      {"what a leader has merged overtakes", {swap_pairs(relays), {}}, "after its report"},
      {"a leader passes the stream on to some of its children",
       {chosen_message_tap(to_odd_members, lose_all), {}},
       "deadlock"},
      {"a leader passes the stream on twice",
       {chosen_message_tap(is_stream_of_leader, send_twice), {}},
       "control message"},
      {"a leader changes the order of the stream",
       {chosen_message_tap(is_stream_of_leader, reverse_the_stream), {}},
       "control message"},
  };
  for (auto& bug : bugs) bug.kind = ScriptKind::kHosts;
  return bugs;
}

}  // namespace farandole::sim
