#include "remote/host_list.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/try.h"
#include "base/visible_text.h"
#include "base/whole_number.h"
#include "network/tcp/host_name.h"
#include "nodes/node_layout.h"

namespace farandole {
namespace {

constexpr std::size_t kUserBytesMax = 32;
constexpr int kShownColumnsMax = 100;
constexpr std::string_view kBlanks = " \t";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Shortens and escapes a text of the user for an error text.
std::string shorten(std::string_view text) {
  return cut_to(escape_controls(text), kShownColumnsMax);
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// Removes the text before the first separator from `remaining_text`, and also the separator.
// Returns the removed text without the separator.
std::string_view take_before(std::string_view& remaining_text, std::string_view separators) {
  const std::size_t end = std::min(remaining_text.find_first_of(separators), remaining_text.size());
  const std::string_view first_part = remaining_text.substr(0, end);
  remaining_text.remove_prefix(std::min(end + 1, remaining_text.size()));
  return first_part;
}

Status check_user(std::string_view user) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' ||
           c == '.' || c == '-';
  };
  if (!user.empty() && user.size() <= kUserBytesMax && user.front() != '-' &&
      std::ranges::all_of(user, is_allowed))
    return {};
  return Status::fix_call(format_text(
      "the user name is \"{}\"; it must have 1 to {} characters, which are letters, digits, '_', "
      "'.' and '-', and it must not begin with '-'",
      shorten(user), kUserBytesMax));
}

bool is_ipv6_address(std::string_view text) {
  return text.find(':') != std::string_view::npos && check_host_name(std::string(text)).ok();
}

// Checks the name, and removes its brackets.
Status parse_name(std::string_view name, std::string& parsed_name) {
  const bool has_brackets = name.size() > 2 && name.front() == '[' && name.back() == ']';
  if (has_brackets) name = name.substr(1, name.size() - 2);
  if (!check_host_name(std::string(name)).ok())
    return Status::fix_call(
        format_text("\"{}\" is neither a host name nor an IP address; write HOST or HOST:SLOTS, "
                    "such as hen:2, alice@hen:2 or [fd00::1]:4",
                    shorten(name)));
  if (has_brackets && !is_ipv6_address(name))
    return Status::fix_call("only an IPv6 address has brackets; remove them");
  parsed_name = name;
  return {};
}

Result<int> parse_slots(std::string_view text) {
  return parse_whole_number("the number of slots", shorten(text), 1, kWorkersMax);
}

struct ParsedHost {
  HostEntry host;
  bool has_slots = false;
};

// Parses "alice@hen:2".
Result<ParsedHost> parse_host(std::string_view text) {
  ParsedHost parsed;
  if (const std::size_t at = text.rfind('@'); at != std::string_view::npos) {
    parsed.host.user = text.substr(0, at);
    FARANDOLE_TRY(check_user(parsed.host.user));
    text.remove_prefix(at + 1);
  }
  // A colon before a bracket belongs to the address.
  const std::size_t colon = text.find_last_of(":]");
  parsed.has_slots = colon != std::string_view::npos && text[colon] == ':';
  const std::string_view name = parsed.has_slots ? text.substr(0, colon) : text;
  // In "fd00::1:4", 4 may be the number of slots or a part of the address.
  if (is_ipv6_address(text) || is_ipv6_address(name))
    return Status::fix_call("an IPv6 address needs brackets; write it as in [fd00::1]:4");
  FARANDOLE_TRY(parse_name(name, parsed.host.name));
  if (parsed.has_slots) {
    FARANDOLE_TRY_ASSIGN(parsed.host.slots, parse_slots(text.substr(colon + 1)));
  }
  return parsed;
}

Result<HostEntry> parse_entry(std::string_view entry) {
  FARANDOLE_TRY_ASSIGN(const ParsedHost parsed, parse_host(entry));
  return parsed.host;
}

// The error for a word that has no meaning in a hostfile. `name` is the first word of the line.
Status unknown_word_error(std::string_view name, std::string_view word, bool has_slots) {
  if (!has_slots && std::ranges::all_of(word, is_digit))
    return Status::fix_call(
        format_text("\"slots=\" is missing before the number of slots; write \"{0}:{1}\" or \"{0} "
                    "slots={1}\"",
                    shorten(name), shorten(word)));
  return Status::fix_call(
      format_text("\"{}\" is neither slots=N nor max_slots=N; write a line such as \"hen slots=2\"",
                  shorten(word)));
}

// Some hostfiles have blanks around "=". Removes these blanks.
std::string without_blanks_at_equals(std::string_view line) {
  std::string text;
  for (const char letter : line) {
    const bool is_blank = kBlanks.find(letter) != std::string_view::npos;
    if (is_blank && text.ends_with('=')) continue;
    if (letter == '=') text.resize(trimmed(text).empty() ? 0 : text.find_last_not_of(kBlanks) + 1);
    text += letter;
  }
  return text;
}

// Parses "hen slots=2 max_slots=4".
Result<HostEntry> parse_line(std::string_view text, int slots_default) {
  const std::string compact = without_blanks_at_equals(text);
  std::string_view line = compact;
  const std::string_view name = take_before(line, kBlanks);
  FARANDOLE_TRY_ASSIGN(ParsedHost parsed, parse_host(name));
  if (!parsed.has_slots) parsed.host.slots = slots_default;
  std::optional<std::string_view> slots_max;
  for (line = trimmed(line); !line.empty(); line = trimmed(line)) {
    const std::string_view word = take_before(line, kBlanks);
    const std::string_view value = word.substr(std::min(word.find('=') + 1, word.size()));
    const bool is_max = word.starts_with("max_slots=") || word.starts_with("max-slots=");
    if (!is_max && !word.starts_with("slots="))
      return unknown_word_error(name, word, parsed.has_slots);
    if (is_max ? slots_max.has_value() : parsed.has_slots)
      return Status::fix_call(format_text("{} is given twice; give it once",
                                          is_max ? "max_slots" : "the number of slots"));
    if (is_max) {
      slots_max = value;
    } else {
      FARANDOLE_TRY_ASSIGN(parsed.host.slots, parse_slots(value));
      parsed.has_slots = true;
    }
  }
  if (slots_max)
    FARANDOLE_TRY(parse_whole_number("max_slots", shorten(*slots_max), parsed.host.slots,
                                     std::numeric_limits<int>::max())
                      .status());
  return std::move(parsed.host);
}

// The hosts that have been read so far.
class HostList {
 public:
  Status add(HostEntry host);
  std::vector<HostEntry> take() { return std::move(hosts_); }
  bool empty() const { return hosts_.empty(); }

 private:
  std::vector<HostEntry> hosts_;
  // The position of each host in hosts_, by user and name. The same host may be added several
  // times, because some hostfiles have one line per slot.
  std::map<std::pair<std::string, std::string>, std::size_t> positions_;
};

Status HostList::add(HostEntry host) {
  const auto [entry_position, is_new] =
      positions_.try_emplace({host.user, host.name}, hosts_.size());
  if (!is_new) {
    int& slots = hosts_[entry_position->second].slots;
    if (host.slots > kWorkersMax - slots)
      return Status::fix_call(format_text(
          "the host is listed more than once, and its slots add up to {}; a host has at most {} "
          "slots, so lower them",
          slots + host.slots, kWorkersMax));
    slots += host.slots;
    return {};
  }
  if (hosts_.size() == static_cast<std::size_t>(kNodesMax))
    return Status::fix_call(
        format_text("this is host number {}; a job has at most {} hosts, so "
                    "name fewer",
                    kNodesMax + 1, kNodesMax));
  hosts_.push_back(std::move(host));
  return {};
}

// Adds a host that the parser has returned. Errors: kFixCall with the place and text of the host.
Status add_to(HostList& hosts, Result<HostEntry> host, std::string_view place,
              std::string_view text) {
  const Status added = host.ok() ? hosts.add(*std::move(host)) : host.status();
  if (added.ok()) return {};
  return Status::fix_call(format_text("{}: \"{}\": {}", place, shorten(text), added.message()));
}

std::string count_text(std::int64_t count, std::string_view noun) {
  return format_text("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace

Result<std::vector<HostEntry>> parse_hosts(std::string_view text) {
  if (trimmed(text).empty())
    return Status::fix_call(format_text(
        "-H \"{}\" names no host; write a list of hosts, such as hen:2,owl:4", shorten(text)));
  HostList hosts;
  std::string_view remaining_text = text;
  const auto entries = std::ranges::count(text, ',') + 1;
  for (int number = 1; number <= entries; ++number) {
    const std::string_view entry = trimmed(take_before(remaining_text, ","));
    if (entry.empty())
      return Status::fix_call(
          format_text("-H \"{}\": entry {} is empty; remove the extra comma, or name a host there",
                      shorten(text), number));
    FARANDOLE_TRY(add_to(hosts, parse_entry(entry), format_text("-H, entry {}", number), entry));
  }
  return hosts.take();
}

Result<std::vector<HostEntry>> parse_hostfile(std::string_view text, const std::string& path,
                                              int slots_default) {
  HostList hosts;
  for (int number = 1; !text.empty(); ++number) {
    std::string_view line = take_before(text, "\n");
    if (line.ends_with('\r')) line.remove_suffix(1);
    line = trimmed(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::string place = format_text("{}, line {}", escape_controls(path), number);
    FARANDOLE_TRY(add_to(hosts, parse_line(line, slots_default), place, line));
  }
  if (hosts.empty())
    return Status::fix_call(
        format_text("{} names no host; write one host per line, such as \"hen slots=2\"",
                    escape_controls(path)));
  return hosts.take();
}

Result<std::vector<HostEntry>> assign_workers(const std::vector<HostEntry>& hosts,
                                              std::optional<int> workers) {
  CHECK(!workers || *workers > 0, "the parser of -n accepts only positive numbers");
  std::int64_t slots = 0;
  for (const HostEntry& host : hosts) slots += host.slots;
  std::int64_t workers_left = workers ? *workers : slots;
  if (workers_left > slots)
    return Status::fix_call(
        format_text("-n is {}, but the hosts have only {}; lower -n, or give more hosts or slots",
                    workers_left, count_text(slots, "slot")));
  if (workers_left > kWorkersMax)
    return Status::fix_call(
        format_text("this job would have {} workers, but a job has at most {}; give a smaller -n",
                    workers_left, kWorkersMax));
  std::vector<HostEntry> assigned;
  for (const HostEntry& host : hosts) {
    if (workers_left == 0) break;
    assigned.push_back(host);
    assigned.back().slots = static_cast<int>(std::min<std::int64_t>(host.slots, workers_left));
    workers_left -= assigned.back().slots;
  }
  return assigned;
}

int slots_of(const std::vector<HostEntry>& hosts) {
  int slots = 0;
  for (const HostEntry& host : hosts) slots += host.slots;
  return slots;
}

}  // namespace farandole
