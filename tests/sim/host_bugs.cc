// Bugs in how members on several hosts enter a step, and in how groups end across hosts.
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <variant>
#include <vector>

#include "bugs.h"

namespace farandole::sim {
namespace {

using Frames = std::vector<RoutedFrame>;
using Channel = std::tuple<int, int, int>;  // group, from, to

Channel channel_of(const RoutedFrame& frame) { return {frame.group, frame.from, frame.to}; }

// A tap on the entries. `change` may keep state per channel.
template <class State>
std::function<FrameTap(const Script&)> entry_tap(
    std::function<Frames(State&, const RoutedFrame&)> change) {
  return [change](const Script& /*script*/) -> FrameTap {
    auto states = std::make_shared<std::map<Channel, State>>();  // shared by all copies of the tap
    return [change, states](const RoutedFrame& frame) -> Frames {
      if (!frame.is_entry()) return {frame};
      return change((*states)[channel_of(frame)], frame);
    };
  };
}

// A tap on the ends of groups.
std::function<FrameTap(const Script&)> end_tap(std::function<void(EndFrame&)> change) {
  return [change](const Script& /*script*/) -> FrameTap {
    return [change](RoutedFrame frame) -> Frames {
      if (auto* end = std::get_if<EndFrame>(&frame.frame)) change(*end);
      return {frame};
    };
  };
}

FrameTap send_ends_to_one_host(const Script& /*script*/) {
  return [](const RoutedFrame& frame) -> Frames {
    if (frame.is_entry() || frame.to == (frame.from == 0 ? 1 : 0)) return {frame};
    return {};
  };
}

struct EntryCount {
  int entries = 0;
};

Frames lose_every_tenth(EntryCount& count, const RoutedFrame& frame) {
  if (++count.entries % 10 == 0) return {};
  return {frame};
}

// Every channel to a host part with a higher index loses its fifth entry and all later entries.
Frames partition_for_ever(EntryCount& count, const RoutedFrame& frame) {
  if (++count.entries >= 5 && frame.from < frame.to) return {};
  return {frame};
}

Frames send_to_one_host(EntryCount& /*count*/, const RoutedFrame& frame) {
  if (frame.to == (frame.from == 0 ? 1 : 0)) return {frame};
  return {};
}

struct SentFrames {
  Frames frames;
};

// Sends each entry again after the next two entries.
Frames repeat_later(SentFrames& sent, const RoutedFrame& frame) {
  sent.frames.push_back(frame);
  Frames frames = {frame};
  if (sent.frames.size() > 2) frames.push_back(sent.frames[sent.frames.size() - 3]);
  return frames;
}

// When an entry of a newer generation has replaced an older entry, sends the older one again.
Frames bring_back_older_entries(SentFrames& sent, const RoutedFrame& frame) {
  const auto step_of = [](const RoutedFrame& routed) {
    return std::get<EntryFrame>(routed.frame).step;
  };
  Frames frames = {frame};
  if (!sent.frames.empty() && step_of(sent.frames.back()).sequence == step_of(frame).sequence)
    frames.push_back(sent.frames.back());
  sent.frames = {frame};
  return frames;
}

std::vector<NamedBug> entry_bugs() {
  return {
      {"an entry is sent before the whole host part has entered",
       {{}, {.sends_its_entry_too_early = true}},
       "is not in it"},
      {"the identities of entries are not compared",
       {{}, {.does_not_compare_entries = true}},
       "has entered calls"},
      {"the generation of entries is ignored",
       {{}, {.entries_have_no_generation = true}},
       "is not in it"},
      {"an older entry replaces a newer one",
       {{}, {}, entry_tap<SentFrames>(bring_back_older_entries)},
       "deadlock"},
      {"entries of a newer generation are dropped",
       {{}, {.drops_entries_of_a_newer_generation = true}},
       "deadlock"},
      {"one host is not awaited", {{}, {.does_not_await_the_last_host = true}}, "is not in it"},
      {"local members do not wait for the all-entered flag",
       {{}, {.local_members_do_not_wait = true}},
       "is not in it"},
      {"the all-entered flag is written before all entries are there",
       {{}, {.all_entered_flag_before_all_entries = true}},
       "is not in it"},
      {"lane 0 takes no notice of a misprediction between hosts",
       {{}, {.ignores_mispredictions_between_hosts = true}},
       "deadlock"},
      {"entries are lost", {{}, {}, entry_tap<EntryCount>(lose_every_tenth)}, "deadlock"},
      {"an entry comes again after later ones",
       {{}, {}, entry_tap<SentFrames>(repeat_later)},
       "deadlock"},
      {"an entry is sent to one host only",
       {{}, {}, entry_tap<EntryCount>(send_to_one_host)},
       "deadlock"},
      {"a partition never ends", {{}, {}, entry_tap<EntryCount>(partition_for_ever)}, "deadlock"},
  };
}

std::vector<NamedBug> end_bugs() {
  return {
      {"a group ends at once, with a step open",
       {{}, {.ends_at_once = true}},
       "though no member of its group leaves early"},
      {"no end is sent to other hosts", {{}, {.sends_no_end = true}}, "deadlock"},
      {"no end is sent if lane 0 itself leaves",
       {{}, {.sends_no_end_when_lane_0_leaves = true}},
       "deadlock"},
      {"an end is sent to one host only", {{}, {}, send_ends_to_one_host}, "deadlock"},
      {"an end names the last completed step",
       {{}, {.ends_name_the_completed_step = true}},
       "two outcomes"},
      {"an end is not answered", {{}, {.does_not_answer_an_end = true}}, "deadlock"},
      {"an end says one step too many",
       {{}, {}, end_tap([](EndFrame& end) { ++end.entered.sequence; })},
       "deadlock"},
      {"an end says one step too few",
       {{}, {}, end_tap([](EndFrame& end) { --end.entered.sequence; })},
       "though no member of its group leaves early"},
      {"a host part enters a step after its end",
       {{}, {.enters_after_its_end = true}},
       "two outcomes"},
      {"lane 0 leaves while a step is open",
       {{}, {.lane_0_leaves_in_a_step = true}},
       "two outcomes"},
      {"a member leaves while a step is open", {{}, {.leaves_in_a_step = true}}, "two outcomes"},
      {"a member drops a step that all hosts have entered",
       {{}, {.drops_a_step_that_all_hosts_have_entered = true}},
       "though no member of its group leaves early"},
      {"the end is not written for the local members",
       {{}, {.does_not_tell_local_members_of_the_end = true}},
       "deadlock"},
      {"a host does not pass on a death", {{}, {.deaths_are_not_passed_on = true}}, "deadlock"},
      {"a host passes a leave on as a death",
       {{}, {.passes_a_leave_on_as_a_death = true}},
       "which has not died"},
      {"a host forgets the first cause",
       {{}, {.forgets_the_first_cause = true}},
       "was not the first to leave"},
  };
}

}  // namespace

std::vector<NamedBug> host_bugs() {
  auto bugs = entry_bugs();
  for (auto& bug : end_bugs()) bugs.push_back(bug);
  for (auto& bug : bugs) bug.kind = ScriptKind::kHosts;
  return bugs;
}

}  // namespace farandole::sim
