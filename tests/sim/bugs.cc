#include "bugs.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "control/messages.h"

namespace farandole::sim {
namespace {

using Items = std::vector<StreamItem>;

template <class Item>
std::vector<Envelope> pack_items(const Envelope& original, const std::vector<Item>& items) {
  MessagePacker packer;
  for (const auto& item : items) {
    if constexpr (std::is_same_v<Item, Announcement>)
      packer.add(MemberSet(original.from), item);
    else
      packer.add(item);
  }
  std::vector<Envelope> envelopes;
  while (auto bytes = packer.take())
    envelopes.push_back({original.group, original.from, original.to, *std::move(bytes)});
  return envelopes;
}

int last_member(const Script& script, int group) {
  return static_cast<int>(script.groups[static_cast<std::size_t>(group)].size()) - 1;
}

// A tap on the messages from the coordinator to the last member of each group. `change` may keep
// state per group.
template <class State>
std::function<Tap(const Script&)> stream_tap(std::function<void(State&, Items&)> change) {
  return [change](const Script& script) -> Tap {
    auto states = std::make_shared<std::map<int, State>>();  // shared by all copies of the tap
    return [&script, change, states](Envelope envelope) -> std::vector<Envelope> {
      if (envelope.from != 0 || envelope.to != last_member(script, envelope.group))
        return {std::move(envelope)};
      auto items = decode_stream(envelope.bytes).value();
      change((*states)[envelope.group], items);
      return pack_items(envelope, items);
    };
  };
}

struct NoState {};

void swap_two_names(NoState& /*state*/, Items& items) {
  Define* first_define = nullptr;
  for (auto& item : items) {
    auto* define = std::get_if<Define>(&item);
    if (define == nullptr) continue;
    if (first_define != nullptr) std::swap(first_define->signature, define->signature);
    first_define = first_define == nullptr ? define : nullptr;
  }
}

void change_a_text(NoState& /*state*/, Items& items) {
  for (auto& item : items)
    if (auto* reject = std::get_if<Reject>(&item)) reject->text += "!";
}

void never_forget(NoState& /*state*/, Items& items) {
  std::erase_if(items, [](const auto& item) { return std::holds_alternative<Forget>(item); });
}

// The state of reuse_ids(), which gives the next new name the id that was forgotten last.
struct IdReuse {
  std::optional<std::uint32_t> forgotten_id;
  std::map<std::uint32_t, std::uint32_t> replacements;  // by id
};

void reuse_ids(IdReuse& id_reuse, Items& items) {
  const auto translate = [&id_reuse](std::uint32_t& id) {
    if (const auto found = id_reuse.replacements.find(id); found != id_reuse.replacements.end())
      id = found->second;
  };
  for (auto& item : items) {
    if (auto* forget = std::get_if<Forget>(&item)) {
      translate(forget->id);
      id_reuse.forgotten_id = forget->id;
    } else if (auto* define = std::get_if<Define>(&item)) {
      if (id_reuse.forgotten_id)
        id_reuse.replacements[define->id] = *std::exchange(id_reuse.forgotten_id, std::nullopt);
      translate(define->id);
    } else if (auto* issue = std::get_if<Issue>(&item)) {
      translate(issue->id);
    }
  }
}

// As long as the last member has announced nothing, the coordinator counts each name that the
// second-last member announces for the last member, too.
Tap decide_too_early(const Script& script) {
  // The groups in which the last member has announced something. All copies of the tap share the
  // set.
  auto announcing_groups = std::make_shared<std::set<int>>();
  return [&script, announcing_groups](Envelope envelope) -> std::vector<Envelope> {
    const int last = last_member(script, envelope.group);
    if (envelope.to != 0 || last == 0) return {std::move(envelope)};
    auto items = decode_announcements(envelope.bytes).value().items;
    std::erase_if(items,
                  [](const auto& item) { return !std::holds_alternative<AnnounceInFull>(item); });
    if (envelope.from == last && !items.empty()) announcing_groups->insert(envelope.group);
    if (envelope.from != last - 1 || announcing_groups->contains(envelope.group))
      return {std::move(envelope)};
    auto envelopes = pack_items({envelope.group, last, 0, {}}, items);
    envelopes.push_back(std::move(envelope));
    return envelopes;
  };
}

// The coordinator forgets the id of a call that it has not decided yet. A follower must then
// announce this call again. With this bug, it does not.
Tap do_not_announce_again(const Script& /*script*/) {
  return [](Envelope envelope) -> std::vector<Envelope> {
    if (envelope.to != 0) return {std::move(envelope)};
    auto items = decode_announcements(envelope.bytes).value().items;
    std::erase_if(items,
                  [](const auto& item) { return std::holds_alternative<AnnounceAgain>(item); });
    return pack_items(envelope, items);
  };
}

template <class Item>
bool announces(const Envelope& envelope) {
  if (envelope.to != 0) return false;
  const auto items = decode_announcements(envelope.bytes).value().items;
  return std::ranges::any_of(items,
                             [](const auto& item) { return std::holds_alternative<Item>(item); });
}

// When a member joins, the coordinator does not examine pending names again, so the join counts
// only for later announcements. The tap simulates this: it delays the message about a join until
// another member announces a call.
Tap do_not_examine_again(const Script& /*script*/) {
  auto held_joins =
      // by group; shared by all copies of the tap
      std::make_shared<std::map<int, std::vector<Envelope>>>();
  return [held_joins](Envelope envelope) -> std::vector<Envelope> {
    auto& joins = (*held_joins)[envelope.group];
    const bool from_joined =
        std::ranges::any_of(joins, [&](const auto& join) { return join.from == envelope.from; });
    if (envelope.to != 0) return {std::move(envelope)};
    if (announces<AnnounceJoin>(envelope) || from_joined) {
      joins.push_back(std::move(envelope));
      return {};
    }
    auto envelopes = std::exchange(joins, {});
    envelopes.push_back(std::move(envelope));
    return envelopes;
  };
}

// The coordinator counts the last member as joined even after the release of all members.
Tap stay_joined(const Script& script) {
  return [&script](Envelope envelope) -> std::vector<Envelope> {
    const int last = last_member(script, envelope.group);
    if (envelope.from != 0 || envelope.to != last) return {std::move(envelope)};
    const auto items = decode_stream(envelope.bytes).value();
    const bool releases = std::ranges::any_of(
        items, [](const auto& item) { return std::holds_alternative<ReleaseAll>(item); });
    if (!releases) return {std::move(envelope)};
    const Envelope last_member_envelope{envelope.group, last, 0, {}};
    auto join_envelopes =
        pack_items(last_member_envelope, std::vector<Announcement>{AnnounceJoin{}});
    return {std::move(join_envelopes.front()), std::move(envelope)};
  };
}

void name_another_last_rank(NoState& /*state*/, Items& items) {
  for (auto& item : items)
    if (auto* release = std::get_if<ReleaseAll>(&item)) release->last_rank ^= 1;
}

void drop_releases(NoState& /*state*/, Items& items) {
  std::erase_if(items, [](const auto& item) { return std::holds_alternative<ReleaseAll>(item); });
}

// The coordinator does not compare scales. The tap simulates this: it replaces the scales that the
// last member announces by the scales of another member.
Tap do_not_compare_scales(const Script& script) {
  using Scales = std::pair<double, double>;
  auto scales =
      std::make_shared<std::map<std::pair<int, std::string>, Scales>>();  // by group, name
  return [&script, scales](Envelope envelope) -> std::vector<Envelope> {
    if (envelope.to != 0) return {std::move(envelope)};
    auto items = decode_announcements(envelope.bytes).value().items;
    for (auto& item : items) {
      auto* in_full = std::get_if<AnnounceInFull>(&item);
      if (in_full == nullptr || !row_of(in_full->signature.operation).reduces) continue;
      if (in_full->signature.has_call_error()) continue;
      auto& signature = in_full->signature;
      const Scales own_scales{signature.prescale, signature.postscale};
      auto& known_scales =
          scales->emplace(std::pair(envelope.group, signature.name), own_scales).first->second;
      if (envelope.from != last_member(script, envelope.group)) known_scales = own_scales;
      std::tie(signature.prescale, signature.postscale) = known_scales;
    }
    return pack_items(envelope, items);
  };
}

// A tap on the messages from a group's followers to the coordinator.
template <class State>
std::function<Tap(const Script&)> announcement_tap(
    std::function<void(State&, std::vector<Announcement>&)> change) {
  return [change](const Script& /*script*/) -> Tap {
    auto states = std::make_shared<std::map<std::pair<int, int>, State>>();  // by group and member
    return [change, states](Envelope envelope) -> std::vector<Envelope> {
      if (envelope.to != 0) return {std::move(envelope)};
      auto items = decode_announcements(envelope.bytes).value().items;
      change((*states)[{envelope.group, envelope.from}], items);
      return pack_items(envelope, items);
    };
  };
}

template <class Item>
void lose(NoState& /*state*/, std::vector<Announcement>& items) {
  std::erase_if(items, [](const auto& item) { return std::holds_alternative<Item>(item); });
}

// Without rule A5: after a follower has sent a raise in one generation, it sends no raise in later
// generations.
struct RaiseState {
  std::optional<std::uint32_t> generation;
};

void raise_once(RaiseState& raised, std::vector<Announcement>& items) {
  std::erase_if(items, [&](const auto& item) {
    const auto* raise = std::get_if<Raise>(&item);
    if (raise == nullptr) return false;
    if (!raised.generation) raised.generation = raise->generation;
    return *raised.generation != raise->generation;
  });
}

// Without rule A7: while the group follows a plan, followers do not announce calls outside the
// plan.
Tap announce_nothing_in_a_plan(const Script& /*script*/) {
  // The groups that follow a plan. All copies of the tap share the set.
  auto groups_in_plan = std::make_shared<std::set<int>>();
  return [groups_in_plan](Envelope envelope) -> std::vector<Envelope> {
    if (envelope.from == 0) {
      const auto items = decode_stream(envelope.bytes).value();
      for (const auto& item : items) {
        const auto* answer = std::get_if<Answer>(&item);
        if (std::holds_alternative<Follow>(item) || (answer != nullptr && answer->fragment != 0))
          groups_in_plan->insert(envelope.group);
        else if (answer != nullptr)
          groups_in_plan->erase(envelope.group);
      }
      return {std::move(envelope)};
    }
    if (!groups_in_plan->contains(envelope.group)) return {std::move(envelope)};
    auto items = decode_announcements(envelope.bytes).value().items;
    std::erase_if(items, [](const auto& item) {
      return !std::holds_alternative<Raise>(item) && !std::holds_alternative<Report>(item);
    });
    return pack_items(envelope, items);
  };
}

// Without rule A6: if a name is announced with a new signature, the coordinator uses the old
// signature.
Tap do_not_compare_while_planned(const Script& /*script*/) {
  // (group, name) of each name that has an id
  auto names = std::make_shared<std::set<std::pair<int, std::string>>>();
  return [names](Envelope envelope) -> std::vector<Envelope> {
    if (envelope.from == 0) {
      const auto items = decode_stream(envelope.bytes).value();
      for (const auto& item : items)
        if (const auto* define = std::get_if<Define>(&item))
          names->emplace(envelope.group, define->signature.name);
      return {std::move(envelope)};
    }
    auto items = decode_announcements(envelope.bytes).value().items;
    std::erase_if(items, [&](const auto& item) {
      const auto* in_full = std::get_if<AnnounceInFull>(&item);
      return in_full != nullptr && names->contains({envelope.group, in_full->signature.name});
    });
    return pack_items(envelope, items);
  };
}

// One member switches to the plan one step too early.
void follow_too_early(NoState& /*state*/, Items& items) {
  for (auto& item : items)
    if (auto* follow = std::get_if<Follow>(&item)) --follow->sequence;
}

// One member has the calls of each bucket in reverse order, so its identities differ.
void plan_another_order(NoState& /*state*/, Items& items) {
  for (auto& item : items)
    if (auto* bucket = std::get_if<AddBucket>(&item))
      std::reverse(bucket->ids.begin(), bucket->ids.end());
}

// Without rule A2: a report always says that the follower has not entered the next step, even if
// the follower has entered this step.
void report_no_entry(NoState& /*state*/, std::vector<Announcement>& items) {
  for (auto& item : items)
    if (auto* report = std::get_if<Report>(&item)) report->entered = 0;
}

void report_one_too_few(NoState& /*state*/, std::vector<Announcement>& items) {
  for (auto& item : items)
    if (auto* report = std::get_if<Report>(&item); report != nullptr && report->completed > 0)
      --report->completed;
}

void report_no_identity(NoState& /*state*/, std::vector<Announcement>& items) {
  for (auto& item : items)
    if (auto* report = std::get_if<Report>(&item)) report->identity = 1;
}

// Without rule A1: the last member rolls back a step that all members have entered.
Tap roll_back_agreed_step(const Script& script) {
  auto reports = std::make_shared<std::map<int, Report>>();  // by group
  return [&script, reports](Envelope envelope) -> std::vector<Envelope> {
    const int last = last_member(script, envelope.group);
    if (envelope.to == 0 && envelope.from == last) {
      const auto items = decode_announcements(envelope.bytes).value().items;
      for (const auto& item : items)
        if (const auto* report = std::get_if<Report>(&item)) (*reports)[envelope.group] = *report;
    }
    if (envelope.from != 0 || envelope.to != last) return {std::move(envelope)};
    auto items = decode_stream(envelope.bytes).value();
    const auto& report = (*reports)[envelope.group];
    for (auto& item : items)
      if (auto* answer = std::get_if<Answer>(&item);
          answer != nullptr && report.entered != 0 && answer->common_prefix == report.completed + 1)
        --answer->common_prefix;
    return pack_items(envelope, items);
  };
}

void answer_one_too_many(NoState& /*state*/, Items& items) {
  for (auto& item : items)
    if (auto* answer = std::get_if<Answer>(&item)) ++answer->common_prefix;
}

// Without rule A3: after a replan, sequence numbers begin again at 1.
void begin_again_at_one(NoState& /*state*/, Items& items) {
  for (auto& item : items)
    if (auto* answer = std::get_if<Answer>(&item)) answer->common_prefix = 0;
}

// The answer of a replan carries the old generation instead of the new one.
void stay_in_the_generation(NoState& /*state*/, Items& items) {
  for (auto& item : items)
    if (auto* answer = std::get_if<Answer>(&item)) --answer->generation;
}

void never_stop(NoState& /*state*/, Items& items) {
  std::erase_if(items, [](const auto& item) { return std::holds_alternative<Stop>(item); });
}

// Changes every tenth message.
std::function<Tap(const Script&)> tenth_message_tap(
    std::function<std::vector<Envelope>(Envelope)> change) {
  return [change](const Script& /*script*/) -> Tap {
    return [change, count = 0](Envelope envelope) mutable -> std::vector<Envelope> {
      if (++count % 10 != 0) return {std::move(envelope)};
      return change(std::move(envelope));
    };
  };
}

// Messages of one channel overtake each other: every fourth message is delayed until the next
// message of its channel has been sent.
Tap overtake(const Script& /*script*/) {
  using Key = std::tuple<int, int, int>;
  auto held_envelopes =
      std::make_shared<std::map<Key, Envelope>>();  // shared by all copies of the tap
  return [held_envelopes, count = 0](Envelope envelope) mutable -> std::vector<Envelope> {
    const Key key{envelope.group, envelope.from, envelope.to};
    if (auto earlier = held_envelopes->extract(key))
      return {std::move(envelope), std::move(earlier.mapped())};
    if (++count % 4 != 0) return {std::move(envelope)};
    held_envelopes->emplace(key, std::move(envelope));
    return {};
  };
}

std::vector<NamedBug> wire_bugs() {
  const auto lose = [](const Envelope& /*envelope*/) { return std::vector<Envelope>(); };
  const auto repeat = [](const Envelope& envelope) {
    return std::vector<Envelope>{envelope, envelope};
  };
  const auto flip_bit = [](Envelope envelope) {
    envelope.bytes.back() ^= std::byte{0x40};
    return std::vector<Envelope>{std::move(envelope)};
  };
  return {
      {"a message is lost", {tenth_message_tap(lose), {}}, "deadlock"},
      {"a message comes twice", {tenth_message_tap(repeat), {}}, "a second time"},
      {"a message is damaged", {tenth_message_tap(flip_bit), {}}, "control message"},
      {"a message overtakes another", {overtake, {}}, "control message"},
      {"a step is issued before the last member announced", {decide_too_early, {}}, "it announces"},
      {"a forgotten name is not announced again", {do_not_announce_again, {}}, "deadlock"},
      {"a join does not make the coordinator examine pending names",
       {do_not_examine_again, {}},
       "deadlock"},
      {"a release leaves a member joined", {stay_joined, {}}, "after it has joined"},
      {"scales are not compared", {do_not_compare_scales, {}}, "has not announced this signature"},
  };
}

std::vector<NamedBug> stream_bugs() {
  return {
      {"two names change places on one member",
       {stream_tap<NoState>(swap_two_names), {}},
       "is not over"},
      {"an id is given again after it was forgotten",
       {stream_tap<IdReuse>(reuse_ids), {}},
       "the id"},
      {"the table of names grows beyond its bound",
       {stream_tap<NoState>(never_forget), {}},
       "names have an id"},
      {"the text of a rejection differs", {stream_tap<NoState>(change_a_text), {}}, "another saw"},
      {"a release does not come", {stream_tap<NoState>(drop_releases), {}}, "deadlock"},
      {"a release names another rank on one member",
       {stream_tap<NoState>(name_another_last_rank), {}},
       "was the last"},
  };
}

std::vector<NamedBug> replan_bugs() {
  return {
      {"A1: one member rolls back what all have entered",
       {roll_back_agreed_step, {}},
       "it says that all have entered decision"},
      {"A1: generations are not compared on the board",
       {{}, {.ignores_generations = true, .identity_without_step_number = true}},
       "is not in it"},
      {"A2: a report does not say what was entered",
       {announcement_tap<NoState>(report_no_entry), {}},
       "our own decisions are valid",
       true},
      {"A2: a report says one completed too few",
       {announcement_tap<NoState>(report_one_too_few), {}},
       "our own decisions are valid",
       true},
      {"A2: a report says another identity",
       {announcement_tap<NoState>(report_no_identity), {}},
       "our own decisions are valid",
       true},
      {"A3: the sequence begins again at 1",
       {stream_tap<NoState>(begin_again_at_one), {}},
       "it says that all have entered decision 0"},
      {"A4: there is no grace timer", {{}, {.never_ticks = true}}, "deadlock"},
      {"A5: a follower that has raised once does not raise again",
       {announcement_tap<RaiseState>(raise_once), {}},
       "deadlock"},
      {"A6: another signature of a planned name is not announced",
       {do_not_compare_while_planned, {}},
       "deadlock"},
      {"A7: a call outside the plan is not announced",
       {announce_nothing_in_a_plan, {}},
       "deadlock"},
      {"the plan begins within a step",
       {stream_tap<NoState>(follow_too_early), {}},
       "control message"},
      {"a bucket has another order on one member",
       {stream_tap<NoState>(plan_another_order), {}},
       "nothing is new"},
      {"the common prefix is one too long on one member",
       {stream_tap<NoState>(answer_one_too_many), {}},
       "deadlock"},
      {"an answer does not begin a generation",
       {stream_tap<NoState>(stay_in_the_generation), {}},
       "control message"},
      {"a raise is lost", {announcement_tap<NoState>(lose<Raise>), {}}, "deadlock"},
      {"a report is lost", {announcement_tap<NoState>(lose<Report>), {}}, "deadlock"},
      {"a stop is lost", {stream_tap<NoState>(never_stop), {}}, "deadlock"},
  };
}

std::vector<NamedBug> engine_bugs() {
  return {
      {"a step completes before the last member entered",
       {{}, {.completes_before_the_last_entry = true}},
       "is not in it"},
      {"the identity depends on the declared counts",
       {{}, {.identity_includes_rows = true}},
       "deadlock"},
      {"each member chooses its algorithm",
       {{}, {.each_member_chooses_its_algorithm = true}},
       "deadlock"},
      {"waits are not counted", {{}, {.counts_no_waits = true}}, "has waited between"},
      {"the agreement is not notified of a misprediction",
       {{}, {.ignores_mispredictions = true}},
       "deadlock"},
      {"a release names a member that was not the last to join",
       {{}, {.releases_name_the_first_member = true}},
       "was the last to join"},
      {"a member that has joined brings data",
       {{}, {.joined_members_bring_data = true}},
       "gave the sum"},
      {"one survivor is not notified of a death",
       {{}, {.one_survivor_is_not_notified = true}},
       "deadlock"},
      {"a member leaves before its writes are seen",
       {{}, {.leaves_before_its_writes_are_seen = true}},
       "leaves early"},
      {"a step that all have entered is lost when a member leaves",
       {{}, {.loses_steps_that_all_have_entered = true}},
       "leaves early"},
      {"a leave ends a group that the leaver was not in",
       {{}, {.a_leave_ends_other_groups = true}},
       "all its members go on"},
      {"the last of several leavers is blamed",
       {{}, {.the_last_leaver_is_blamed = true}},
       "blames"},
      {"a poll releases a name", {{}, {.polls_release_names = true}}, "is named"},
      {"a poll lets a name be used again",
       {{}, {.polls_release_names = true}},
       "is accepted while"},
      {"a dropped call releases a name", {{}, {.dropped_calls_release_names = true}}, "is named"},
      {"a dropped call lets its name be used again",
       {{}, {.dropped_calls_release_names = true}},
       "is accepted while"},
  };
}

}  // namespace

std::vector<NamedBug> all_bugs() {
  auto bugs = wire_bugs();
  for (auto bugs_of_kind : {stream_bugs(), replan_bugs(), engine_bugs(), relay_bugs(), host_bugs()})
    bugs.insert(bugs.end(), bugs_of_kind.begin(), bugs_of_kind.end());
  return bugs;
}

}  // namespace farandole::sim
