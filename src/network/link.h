// Link: the two ends of a connection, the job and the epoch. Both ends derive the key of their
// connection from these facts and the job's secret, so the handshake proves each fact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/bytes.h"
#include "farandole/status.h"

namespace farandole {

enum class Role : std::uint8_t {
  kUnknown,  // the process has not yet proven its identity
  kLauncher,
  kAgent,
  kWorker,
};

// One process of a job.
struct Party {
  Role role = Role::kUnknown;
  std::uint32_t number = 0;  // a worker's rank, an agent's host number, 0 for the launcher
  friend bool operator==(const Party&, const Party&) = default;
};

std::string name_of(const Party& party);  // such as "worker 3"

struct Link {
  std::uint64_t job = 0;
  std::uint64_t epoch = 0;
  Party dialer;
  Party listener;
  bool seals_data = true;  // false: data travels in clear and unprotected; see Connection
  friend bool operator==(const Link&, const Link&) = default;
};

// The other end of a connection. If its role is not kUnknown, the other end has proven its party
// and its epoch.
struct ConnectionPeer {
  Party party;
  std::uint64_t epoch = 0;
  std::string addresses;  // for the user, our address first: "10.0.0.1:50012 -> 10.0.0.2:4711"
};

// Returns the bytes that identify a link in a handshake. Different links have different bytes.
Bytes identity_of(const Link& link);
// Errors: kFixCall if identity_of() cannot have made the bytes.
Result<Link> parse_identity(std::span<const std::byte> bytes);

}  // namespace farandole
