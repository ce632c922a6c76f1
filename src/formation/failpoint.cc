#include "formation/failpoint.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "base/format.h"
#include "base/log.h"

namespace farandole {
namespace {

constexpr auto kPlaces = std::to_array<std::string_view>(
    {"engine.stopping", "engine.stopped", "rank.wanted", "rank.asked", "rank.given",
     "formation.published", "formation.shared", "formation.attached", "formation.counted",
     "formation.completed", "formation.departed"});
constexpr auto kActions = std::to_array<std::string_view>({"kill", "stop", "pause"});
constexpr std::chrono::milliseconds kPauseTime{100};

// Returns the value of the enumeration that has this name.
template <class Enum, std::size_t kCount>
std::optional<Enum> value_named(std::string_view name,
                                const std::array<std::string_view, kCount>& names) {
  const auto position = std::ranges::find(names, name);
  if (position == names.end()) return std::nullopt;
  return static_cast<Enum>(position - names.begin());
}

std::string_view name_of(Failpoint::Place place) {
  return kPlaces.at(static_cast<std::size_t>(place));
}

std::string_view name_of(Failpoint::Action action) {
  return kActions.at(static_cast<std::size_t>(action));
}

std::optional<std::int64_t> parse_positive_number(std::string_view text) {
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [number_end, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || number_end != end || number < 1) return std::nullopt;
  return number;
}

std::vector<std::string_view> split_at_colons(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(':');
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

Result<std::shared_ptr<Failpoint>> Failpoint::parse(const std::string& text) {
  if (text.empty()) return {std::shared_ptr<Failpoint>()};
  const auto parts = split_at_colons(text);
  if (parts.size() == 3) {
    const auto place = value_named<Place>(parts[0], kPlaces);
    const auto action = value_named<Action>(parts[1], kActions);
    const auto number = parse_positive_number(parts[2]);
    if (place && action && number) return {std::make_shared<Failpoint>(*place, *action, *number)};
  }
  return Status::fix_call(format_text(
      "FARANDOLE_FAILPOINT is \"{}\"; it must be PLACE:ACTION:NUMBER, such as "
      "formation.attached:kill:2. The place is one of {}; the action is one of {}; the number "
      "counts from 1. Correct it or unset it.",
      text, join_text(kPlaces, ", "), join_text(kActions, ", ")));
}

void Failpoint::pass(Place place) {
  if (place == place_ && passes_left_.fetch_sub(1) == 1) act();
}

void Failpoint::act() const {
  Log({})(Level::kWarning, format_text("process {} is at the failpoint {}: {}", ::getpid(),
                                       name_of(place_), name_of(action_)));
  switch (action_) {
    case Action::kKill:
      ::kill(::getpid(), SIGKILL);
      return;
    case Action::kStop:
      ::kill(::getpid(), SIGSTOP);
      return;
    case Action::kPause:
      std::this_thread::sleep_for(kPauseTime);
      return;
  }
}

}  // namespace farandole
