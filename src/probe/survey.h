// Survey: what `farandole doctor -H` has found out about several hosts: facts about each host, and
// what happened when each host tried to connect to the addresses of each other host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/time_point.h"

namespace farandole {

// The version of a framework or another library; empty if it is not installed.
struct Package {
  std::string name;
  std::string version;
  friend bool operator==(const Package&, const Package&) = default;
};

// An address at which a host can be reached in a job, with the port at which its probe listens.
struct OfferedAddress {
  std::string interface;
  std::string address;  // as SocketAddress::text()
  friend bool operator==(const OfferedAddress&, const OfferedAddress&) = default;
};

struct HostFacts {
  std::string version{};  // of Farandole
  std::string kernel{};
  // The first one is Python itself. Empty if Python does not work or has not answered in time.
  std::vector<Package> packages{};
  int cores = 0;
  std::int64_t memory_bytes = 0;
  std::vector<OfferedAddress> addresses{};  // the best one first
  std::string listen_error{};               // why there is no address; empty if there is one
  friend bool operator==(const HostFacts&, const HostFacts&) = default;
};

// The result when one host looks up the name of a host in the list.
struct NameLookup {
  std::string name;
  std::string error;  // why the name has no address; empty if the name has one
  friend bool operator==(const NameLookup&, const NameLookup&) = default;
};

// Why there is no connection to an address.
enum class ConnectFailure : std::uint8_t {
  kNone,
  kRefused,     // no process listens there, or a firewall rejects
  kNoAnswer,    // usually a firewall that drops packets
  kNoRoute,     // the system, a router or a firewall reports that the host cannot be reached
  kTurnedAway,  // connected, but to a process that is not the probe of that host
  kStalled,     // connected, but no messages arrive, or only small ones
  kOther,
};
inline constexpr int kConnectFailureCount = 7;

// What happened when one host tried one address of another host.
struct Attempt {
  std::uint32_t to = 0;  // the index of the other host
  std::string address;
  ConnectFailure failure = ConnectFailure::kNone;
  std::string error{};            // the error text of the system; empty if the address works
  double round_trip_seconds = 0;  // the median of several round trips; 0 if not measured
  double bytes_per_second = 0;    // over one sealed connection; 0 if not measured
  friend bool operator==(const Attempt&, const Attempt&) = default;
};

struct ClockReading {
  double offset_seconds = 0;  // wall clock of this host − wall clock of `farandole doctor`
  double error_seconds = 0;   // the largest possible error of the offset
};

struct HostReport {
  std::string name;           // the host's name, as the user wrote it
  std::string start_error{};  // why the probe could not be started, or did not answer
  std::string start_advice{};
  std::optional<HostFacts> facts{};
  std::vector<NameLookup> lookups{};
  std::optional<ClockReading> clock{};
  std::vector<Attempt> attempts{};  // attempts that this host made
};

struct Survey {
  std::vector<HostReport> hosts{};
  std::string ports{};  // the ports that the user has chosen for jobs; empty: any port
};

}  // namespace farandole
