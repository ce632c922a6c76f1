#include "probe/verdict.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "network/tcp/socket_address.h"

namespace farandole {
namespace {

constexpr double kClockDifferenceMax = 1;     // seconds
constexpr std::size_t kListedMax = 4;         // the number of names before "and 3 others"
constexpr std::size_t kSourcesListedMax = 8;  // the number of addresses in a firewall rule

using HostNumbers = std::vector<std::size_t>;

int port_of(const std::string& address) {
  const auto parsed = SocketAddress::parse(address);
  return parsed.ok() ? parsed->port : 0;
}

bool is_v6(const std::string& address) { return ip_of(address).find(':') != std::string::npos; }

// Returns "hen, owl", or, for a long list, "hen, owl, newt, mole and 3 others".
std::string shortened_list(std::vector<std::string> texts, std::string_view separator = ", ") {
  const std::size_t other_count = texts.size() > kListedMax + 1 ? texts.size() - kListedMax : 0;
  texts.resize(texts.size() - other_count);
  const std::string text = join_text(texts, separator);
  return other_count > 0 ? format_text("{} and {} others", text, other_count) : text;
}

std::string names_of(const Survey& survey, const HostNumbers& numbers) {
  std::vector<std::string> names;
  for (const std::size_t number : numbers) names.push_back(survey.hosts[number].name);
  return shortened_list(std::move(names));
}

std::string interface_of(const HostReport& host, const std::string& address) {
  if (!host.facts) return "";
  const auto found = std::ranges::find(host.facts->addresses, address, &OfferedAddress::address);
  return found != host.facts->addresses.end() ? found->interface : "";
}

// Whether at least one host has tried this address of `to`, and all hosts that have tried it have
// reached it.
bool is_reached(const Survey& survey, std::size_t to, const std::string& address) {
  bool was_tried = false;
  for (const HostReport& host : survey.hosts)
    for (const Attempt& attempt : host.attempts) {
      if (attempt.to != to || attempt.address != address) continue;
      if (attempt.failure != ConnectFailure::kNone) return false;
      was_tried = true;
    }
  return was_tried;
}

bool is_reachable(const Survey& survey, std::size_t from, std::size_t to) {
  const Attempt* attempt = used_attempt(survey, from, to);
  return attempt != nullptr && attempt->failure == ConnectFailure::kNone;
}

// Whether the address names an interface, as fe80::1%eth0 does. Such an address does not fit into
// the firewall rules that we show.
bool is_scoped(const std::string& address) { return address.find('%') != std::string::npos; }

// Returns the IPv4 or the IPv6 addresses that these hosts offer.
std::set<std::string> addresses_of(const Survey& survey, const HostNumbers& numbers,
                                   bool wants_v6) {
  std::set<std::string> addresses;
  for (const std::size_t number : numbers) {
    const auto& facts = survey.hosts[number].facts;
    if (!facts) continue;
    for (const OfferedAddress& offered : facts->addresses)
      if (is_v6(offered.address) == wants_v6 && !is_scoped(offered.address))
        addresses.insert(ip_of(offered.address));
  }
  return addresses;
}

// Returns the commands that open ports in the firewall for the other hosts. If the job may use any
// port, the commands are for a range of ports that the user can give to jobs.
std::string firewall_advice(const Survey& survey, const Attempt& attempt, const HostNumbers& from) {
  const std::string ports = survey.ports.empty() ? "20000-20099" : survey.ports;
  const std::string ports_advice =
      survey.ports.empty()
          ? format_text(
                "give jobs fixed ports with `--ports {}`, which `farandole doctor` takes, "
                "too, and ",
                ports)
          : "";
  const std::set<std::string> sources = addresses_of(survey, from, is_v6(attempt.address));
  const std::string family = is_v6(attempt.address) ? "ip6" : "ip";
  const std::string source =
      sources.empty() || sources.size() > kSourcesListedMax
          ? ""
          : format_text("{} saddr {{ {} }} ", family, join_text(sources, ", "));
  return format_text(
      "{}open the ports {} in the firewall of {}: with firewalld `firewall-cmd --permanent "
      "--add-port={}/tcp && firewall-cmd --reload`; with nftables, in the chain that drops, such "
      "as `nft insert rule inet filter input {}tcp dport {} accept`; in a cloud, allow these "
      "ports between the hosts",
      ports_advice, ports, survey.hosts[attempt.to].name, ports, source, ports);
}

std::string advice_for(const Survey& survey, const Attempt& attempt, const HostNumbers& from) {
  const std::string ip = ip_of(attempt.address);
  switch (attempt.failure) {
    case ConnectFailure::kRefused:
      return format_text("a firewall rejects the port, or another machine has the address {}; {}",
                         ip, firewall_advice(survey, attempt, from));
    case ConnectFailure::kNoAnswer:
      return "a firewall probably drops the packets; " + firewall_advice(survey, attempt, from);
    case ConnectFailure::kNoRoute:
      return format_text(
          "look at `ip route get {}` and at the firewall on {}; if the network of this address "
          "does not connect the hosts, choose another one with --network-interfaces",
          ip, names_of(survey, from));
    case ConnectFailure::kTurnedAway:
      return format_text(
          "another program or another machine answers at {}; if several hosts have this address, "
          "as the bridges of containers do, leave it out with `--network-interfaces '!{}'`",
          attempt.address, ip);
    case ConnectFailure::kStalled:
      return format_text(
          "probably a part of the network has a smaller MTU than the hosts: compare the MTU in "
          "`ip link` on both hosts, and try `ping -M do -s 1472 {}` from {}",
          ip, names_of(survey, from));
    case ConnectFailure::kNone:
    case ConnectFailure::kOther:
      break;
  }
  return "";
}

void add_hosts_that_failed(const Survey& survey, std::vector<Problem>& problems) {
  for (const HostReport& host : survey.hosts) {
    if (!host.start_error.empty())
      problems.push_back(
          {true, format_text("{}: {}", host.name, host.start_error), host.start_advice});
    else if (host.facts && !host.facts->listen_error.empty())
      problems.push_back(
          {true, format_text("{} cannot be reached: {}", host.name, host.facts->listen_error), ""});
  }
}

// The addresses of one host at which the same other hosts had the same failure.
struct FailureGroup {
  ConnectFailure failure = ConnectFailure::kNone;
  std::vector<Attempt> attempts;  // one attempt for each address
  HostNumbers from;
};
std::vector<FailureGroup> failure_groups(const Survey& survey, std::size_t to, bool is_fatal) {
  std::vector<FailureGroup> address_groups;
  for (std::size_t from = 0; from < survey.hosts.size(); ++from) {
    if (is_reachable(survey, from, to) == is_fatal) continue;
    for (const Attempt& attempt : survey.hosts[from].attempts) {
      if (attempt.to != to || attempt.failure == ConnectFailure::kNone) continue;
      const auto same = std::ranges::find_if(address_groups, [&](const FailureGroup& group) {
        return group.attempts.front().address == attempt.address &&
               group.failure == attempt.failure;
      });
      if (same == address_groups.end())
        address_groups.push_back({attempt.failure, {attempt}, {from}});
      else
        same->from.push_back(from);
    }
  }
  std::vector<FailureGroup> groups;
  for (const FailureGroup& found : address_groups) {
    const auto same = std::ranges::find_if(groups, [&](const FailureGroup& group) {
      return group.failure == found.failure && group.from == found.from;
    });
    if (same == groups.end())
      groups.push_back(found);
    else
      same->attempts.push_back(found.attempts.front());
  }
  return groups;
}

std::string place_of(const HostReport& host, const Attempt& attempt) {
  const std::string interface = interface_of(host, attempt.address);
  return format_text("{} port {}{}", ip_of(attempt.address), port_of(attempt.address),
                     interface.empty() ? "" : format_text(" ({})", interface));
}

// Returns, for example, "hen, owl do not reach newt: no answer at 10.0.0.3 port 4711 (eth0)".
std::string text_of(const Survey& survey, std::size_t to, const FailureGroup& group) {
  const Attempt& first = group.attempts.front();
  const bool needs_detail =
      group.failure == ConnectFailure::kOther || group.failure == ConnectFailure::kStalled;
  std::vector<std::string> places;
  for (const Attempt& attempt : group.attempts)
    places.push_back(place_of(survey.hosts[to], attempt));
  return format_text("{} {} not reach {}: {} at {}{}", names_of(survey, group.from),
                     group.from.size() > 1 ? "do" : "does", survey.hosts[to].name,
                     short_text(group.failure), join_text(places, ", "),
                     needs_detail ? format_text(" ({})", first.error) : "");
}

// Reports hosts at which another host reaches no address.
void add_unreachable_hosts(const Survey& survey, std::vector<Problem>& problems) {
  for (std::size_t to = 0; to < survey.hosts.size(); ++to)
    for (const FailureGroup& group : failure_groups(survey, to, true))
      problems.push_back({true, text_of(survey, to, group),
                          advice_for(survey, group.attempts.front(), group.from)});
}

// Reports the addresses that fail although another address of the same host works. A job connects
// to the first address that answers. So if data stalls at such an address, the job hangs.
void add_dead_addresses(const Survey& survey, std::vector<Problem>& problems) {
  const std::string interfaces = interfaces_that_work(survey);
  const std::string interfaces_advice = format_text(
      "give jobs `--network-interfaces {}`, or set FARANDOLE_NETWORK_INTERFACES", interfaces);
  for (std::size_t to = 0; to < survey.hosts.size(); ++to)
    for (const FailureGroup& group : failure_groups(survey, to, false)) {
      const std::string found =
          format_text("{}; another address works", text_of(survey, to, group));
      const std::string advice = advice_for(survey, group.attempts.front(), group.from);
      if (group.failure == ConnectFailure::kStalled)
        problems.push_back({true, format_text("{}, but a job may choose this one and hang", found),
                            interfaces.empty()
                                ? advice
                                : format_text("{}; until then, {}", advice, interfaces_advice)});
      else
        problems.push_back({false, found,
                            interfaces.empty()
                                ? advice
                                : format_text("without this address, connections begin sooner: {}",
                                              interfaces_advice)});
    }
}

// Hosts by a value that they report, such as a version. The text is "1.2 on hen, owl; 1.3 on newt".
using HostsByValue = std::map<std::string, HostNumbers>;

std::string text_of(const Survey& survey, const HostsByValue& values) {
  std::vector<std::string> parts;
  for (const auto& [value, numbers] : values)
    parts.push_back(format_text("{} on {}", value.empty() ? "not installed" : value,
                                names_of(survey, numbers)));
  return join_text(parts, "; ");
}

void add_versions(const Survey& survey, std::vector<Problem>& problems) {
  HostsByValue versions;
  std::map<std::string, HostsByValue> packages;
  for (std::size_t number = 0; number < survey.hosts.size(); ++number) {
    const auto& facts = survey.hosts[number].facts;
    if (!facts) continue;
    versions[facts->version].push_back(number);
    for (const Package& package : facts->packages)
      packages[package.name][package.version].push_back(number);
  }
  if (versions.size() > 1)
    problems.push_back({true, "Farandole has different versions: " + text_of(survey, versions),
                        "install the same version on all hosts"});
  for (const auto& [name, values] : packages) {
    if (values.size() < 2) continue;
    const std::string& newest = values.rbegin()->first;
    problems.push_back(
        {false, format_text("{} has different versions: {}", name, text_of(survey, values)),
         name.starts_with("python")
             ? "start the job with the same Python on all hosts"
             : format_text("install the same version, for example `python3 -m pip install {}=={}`",
                           name, newest)});
  }
}

void add_clocks(const Survey& survey, std::vector<Problem>& problems) {
  const HostReport* earliest = nullptr;
  const HostReport* latest = nullptr;
  for (const HostReport& host : survey.hosts) {
    if (!host.clock) continue;
    if (earliest == nullptr || host.clock->offset_seconds < earliest->clock->offset_seconds)
      earliest = &host;
    if (latest == nullptr || host.clock->offset_seconds > latest->clock->offset_seconds)
      latest = &host;
  }
  if (earliest == nullptr) return;
  const double difference = latest->clock->offset_seconds - earliest->clock->offset_seconds;
  const double error = latest->clock->error_seconds + earliest->clock->error_seconds;
  if (difference - error <= kClockDifferenceMax) return;
  problems.push_back({false,
                      format_text("the clock of {} is {:.1f} s ahead of that of {}", latest->name,
                                  difference, earliest->name),
                      "log files and certificates depend on the time: let NTP set the clocks, with "
                      "`timedatectl set-ntp true` on each host, and look at `timedatectl`"});
}

// The hosts on which a lookup of a host's name has failed. The first key is the error, and the
// second key is the number of the host whose name was looked up.
using UnknownNames = std::map<std::string, std::map<std::size_t, HostNumbers>>;

UnknownNames unknown_names(const Survey& survey) {
  UnknownNames hosts_by_name;
  for (std::size_t named_host = 0; named_host < survey.hosts.size(); ++named_host) {
    if (!survey.hosts[named_host].facts) continue;  // another function reports the failed start
    for (std::size_t number = 0; number < survey.hosts.size(); ++number) {
      const HostReport& host = survey.hosts[number];
      if (!host.facts) continue;
      const auto lookup =
          std::ranges::find(host.lookups, survey.hosts[named_host].name, &NameLookup::name);
      const std::string error =
          lookup == host.lookups.end() ? "no answer of the name server in time" : lookup->error;
      if (!error.empty()) hosts_by_name[error][named_host].push_back(number);
    }
  }
  return hosts_by_name;
}

void add_names(const Survey& survey, std::vector<Problem>& problems) {
  for (const auto& [error, names] : unknown_names(survey)) {
    std::vector<std::string> texts;
    std::vector<std::string> lines;  // of /etc/hosts
    for (const auto& [named_host, numbers] : names) {
      const HostReport& host = survey.hosts[named_host];
      texts.push_back(format_text("{} on {}", host.name, names_of(survey, numbers)));
      if (!host.facts->addresses.empty() && lines.size() < kListedMax)
        lines.push_back(
            format_text("'{} {}'", ip_of(host.facts->addresses.front().address), host.name));
    }
    const std::string command =
        lines.empty() ? ""
                      : format_text("`printf '%s\\n' {} | sudo tee -a /etc/hosts` there, or ",
                                    join_text(lines, " "));
    problems.push_back(
        {false, format_text("names have no address ({}): {}", error, shortened_list(texts, "; ")),
         format_text("`farandole run -H` needs no names there, but programs that use them do: "
                     "{}records in the DNS",
                     command)});
  }
}

// Returns the names of interfaces that have only working addresses: at least one on each host.
// Empty if a host has no such interface.
std::string working_interfaces(const Survey& survey) {
  std::set<std::string> failing_interfaces;
  std::vector<std::string> chosen_interfaces;
  for (std::size_t to = 0; to < survey.hosts.size(); ++to) {
    if (!survey.hosts[to].facts) continue;
    for (const OfferedAddress& offered : survey.hosts[to].facts->addresses)
      if (!is_reached(survey, to, offered.address)) failing_interfaces.insert(offered.interface);
  }
  for (std::size_t to = 0; to < survey.hosts.size(); ++to) {
    const auto& facts = survey.hosts[to].facts;
    if (!facts) continue;
    const auto working_address =
        std::ranges::find_if(facts->addresses, [&](const OfferedAddress& offered) {
          return !failing_interfaces.contains(offered.interface);
        });
    if (working_address == facts->addresses.end()) return "";
    if (std::ranges::find(chosen_interfaces, working_address->interface) == chosen_interfaces.end())
      chosen_interfaces.push_back(working_address->interface);
  }
  return join_text(chosen_interfaces, ",");
}

// If each host has addresses of the wanted kind (IPv4 or IPv6) and all of them work, returns the
// range of all addresses of this kind. Otherwise, the result is empty.
std::string working_family(const Survey& survey, bool wants_v6) {
  for (std::size_t to = 0; to < survey.hosts.size(); ++to) {
    const auto& facts = survey.hosts[to].facts;
    if (!facts) continue;
    bool has_address = false;
    for (const OfferedAddress& offered : facts->addresses) {
      if (is_v6(offered.address) != wants_v6) continue;
      if (!is_reached(survey, to, offered.address)) return "";
      has_address = true;
    }
    if (!has_address) return "";
  }
  return wants_v6 ? "::/0" : "0.0.0.0/0";
}

// Returns one working address of each host. Empty if a host has none.
std::string working_addresses(const Survey& survey) {
  std::vector<std::string> addresses;
  for (std::size_t to = 0; to < survey.hosts.size(); ++to) {
    const auto& facts = survey.hosts[to].facts;
    if (!facts) continue;
    const auto working_address = std::ranges::find_if(
        facts->addresses,
        [&](const OfferedAddress& offered) { return is_reached(survey, to, offered.address); });
    if (working_address == facts->addresses.end()) return "";
    addresses.push_back(ip_of(working_address->address));
  }
  return join_text(addresses, ",");
}

}  // namespace

std::string ip_of(const std::string& address) {
  const auto parsed = SocketAddress::parse(address);
  return parsed.ok() ? parsed->ip_text() : address;
}

std::string short_text(ConnectFailure failure) {
  constexpr std::array<std::string_view, kConnectFailureCount> kTexts{
      "works", "refused", "no answer", "no route", "turned away", "data stalls", "failed"};
  return std::string(kTexts.at(static_cast<std::size_t>(failure)));
}

const Attempt* used_attempt(const Survey& survey, std::size_t from, std::size_t to) {
  const HostReport& target = survey.hosts[to];
  const Attempt* first_failed = nullptr;
  if (!target.facts) return nullptr;
  for (const OfferedAddress& offered : target.facts->addresses)
    for (const Attempt& attempt : survey.hosts[from].attempts) {
      if (attempt.to != to || attempt.address != offered.address) continue;
      if (attempt.failure == ConnectFailure::kNone) return &attempt;
      if (first_failed == nullptr) first_failed = &attempt;
    }
  return first_failed;
}

std::string interfaces_that_work(const Survey& survey) {
  for (const auto& value : {working_interfaces(survey), working_family(survey, false),
                            working_family(survey, true), working_addresses(survey)})
    if (!value.empty()) return value;
  return "";
}

std::vector<Problem> problems_of(const Survey& survey) {
  std::vector<Problem> problems;
  add_hosts_that_failed(survey, problems);
  add_unreachable_hosts(survey, problems);
  add_versions(survey, problems);
  add_dead_addresses(survey, problems);
  add_clocks(survey, problems);
  add_names(survey, problems);
  std::vector<Problem> ordered;
  for (const bool is_fatal : {true, false})
    std::ranges::copy_if(problems, std::back_inserter(ordered), [is_fatal](const Problem& problem) {
      return problem.is_fatal == is_fatal;
    });
  return ordered;
}

}  // namespace farandole
