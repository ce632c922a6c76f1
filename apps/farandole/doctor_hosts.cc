#include "doctor_hosts.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/format.h"
#include "base/knobs.h"
#include "base/try.h"
#include "network/tcp/listen_knobs.h"
#include "output/colors.h"
#include "probe/hosts_report.h"
#include "probe/verdict.h"
#include "remote/own_host.h"

namespace farandole {
namespace {

constexpr std::string_view kInterfaces = "FARANDOLE_NETWORK_INTERFACES";
constexpr std::string_view kPorts = "FARANDOLE_PORTS";
constexpr int kColumnsDefault = 100;
constexpr int kColumnsMin = 60;
// A job waits longer for its hosts. But a host that ssh does not reach within this time has a
// problem that the report must show.
constexpr auto kStartTimeMax = std::chrono::seconds(30);

using Json = nlohmann::ordered_json;

Json host_json(const HostReport& host) {
  Json object{{"name", host.name}, {"error", host.start_error}};
  if (host.facts) {
    const HostFacts& facts = *host.facts;
    object["version"] = facts.version;
    object["kernel"] = facts.kernel;
    object["cores"] = facts.cores;
    object["memory_bytes"] = facts.memory_bytes;
    object["packages"] = Json::object();
    for (const Package& package : facts.packages)
      object["packages"][package.name] = package.version;
    object["addresses"] = Json::array();
    for (const OfferedAddress& offered : facts.addresses)
      object["addresses"].push_back(
          {{"interface", offered.interface}, {"address", offered.address}});
  }
  object["unknown_names"] = Json::object();
  for (const NameLookup& lookup : host.lookups)
    if (!lookup.error.empty()) object["unknown_names"][lookup.name] = lookup.error;
  if (host.clock)
    object["clock"] = {{"offset_seconds", host.clock->offset_seconds},
                       {"error_seconds", host.clock->error_seconds}};
  return object;
}

Json connection_json(const Survey& survey, const std::string& host_name, const Attempt& attempt) {
  return {{"from", host_name},
          {"to", survey.hosts.at(attempt.to).name},
          {"address", attempt.address},
          {"state", short_text(attempt.failure)},
          {"error", attempt.error},
          {"round_trip_seconds", attempt.round_trip_seconds},
          {"bytes_per_second", attempt.bytes_per_second}};
}

std::string survey_json_text(const Survey& survey, const std::vector<Problem>& problems) {
  Json report{{"works", std::ranges::none_of(problems, &Problem::is_fatal)},
              {"hosts", Json::array()},
              {"connections", Json::array()},
              {"problems", Json::array()}};
  for (const HostReport& host : survey.hosts) {
    report["hosts"].push_back(host_json(host));
    for (const Attempt& attempt : host.attempts)
      report["connections"].push_back(connection_json(survey, host.name, attempt));
  }
  for (const Problem& problem : problems)
    report["problems"].push_back({{"state", problem.is_fatal ? "does not work" : "limited"},
                                  {"found", problem.found},
                                  {"to_do", problem.advice}});
  return report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

ReportStyle report_style() {
  winsize terminal_size{};
  const bool is_terminal =
      ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &terminal_size) == 0 && terminal_size.ws_col > 0;
  return {.columns = std::max(is_terminal ? terminal_size.ws_col : kColumnsDefault, kColumnsMin),
          .has_colors = can_show_colors(STDOUT_FILENO)};
}

}  // namespace

DoctorHosts::DoctorHosts(CLI::App& doctor)
    : hosts_(
          doctor,
          "Examines these hosts over ssh, and the connections between them; numbers of slots are "
          "ignored") {
  const auto add = [&](std::string_view name, const char* type, std::optional<std::string>& value) {
    const KnobRow& row = knob_named(name);
    doctor.add_option(std::string(row.flag), value, std::string(row.help))
        ->type_name(type)
        ->group("Several hosts")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  };
  add(kInterfaces, "TEXT", interfaces_);
  add(kPorts, "TEXT", ports_);
}

Result<bool> DoctorHosts::names_hosts() const {
  if (!hosts_.names_hosts() && (hosts_.has_ssh_flags() || interfaces_ || ports_))
    return Status::fix_call(
        "a flag for several hosts was given, but no hosts; name the hosts with -H or --hostfile");
  return hosts_.names_hosts();
}

Result<ExaminationPlan> DoctorHosts::plan() const {
  ExaminationPlan plan;
  FARANDOLE_TRY_ASSIGN(plan.hosts, hosts_.listed_hosts());
  FARANDOLE_TRY_ASSIGN(plan.ssh, hosts_.ssh_options());
  plan.program = path_of_program();
  Knobs knobs;
  FARANDOLE_TRY(read_knobs(knobs, [](const char* name) { return std::getenv(name); }));
  if (interfaces_) plan.settings.push_back(format_text("{}={}", kInterfaces, *interfaces_));
  if (ports_) {
    plan.settings.push_back(format_text("{}={}", kPorts, *ports_));
    knobs.ports = *ports_;
  }
  FARANDOLE_TRY(parse_ports(knobs.ports).status());
  plan.ports = knobs.ports;
  plan.start_timeout = std::min(
      kStartTimeMax, std::chrono::duration_cast<std::chrono::seconds>(knobs.start_timeout));
  plan.shows_progress = ::isatty(STDERR_FILENO) == 1;
  return plan;
}

Result<int> DoctorHosts::run(bool as_json) const {
  FARANDOLE_TRY_ASSIGN(const ExaminationPlan plan, this->plan());
  FARANDOLE_TRY_ASSIGN(const Survey survey, examine_hosts(plan));
  const std::vector<Problem> problems = problems_of(survey);
  const std::string text =
      as_json ? survey_json_text(survey, problems) : hosts_report(survey, problems, report_style());
  std::fputs(text.c_str(), stdout);
  return std::ranges::any_of(problems, &Problem::is_fatal) ? 1 : 0;
}

}  // namespace farandole
