// Link: who dials whom, in which job and epoch. Both ends derive the key of their connection from
// these facts and the job's secret, so each fact is proven when the connection is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/bytes.h"
#include "farandole/status.h"

namespace farandole {

enum class Role : std::uint8_t {
  kUnknown,  // nothing is proven yet
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

// The other end of a connection. Unless its role is kUnknown, it has proven its party and its
// epoch.
struct OtherEnd {
  Party party;
  std::uint64_t epoch = 0;
  std::string addresses;  // for people: "10.0.0.1:50012 -> 10.0.0.2:4711", ours first
};

// The bytes that name a link when a connection is made: equal for equal links only.
Bytes identity_of(const Link& link);
// Errors: kFixCall if the bytes are not what identity_of() makes.
Result<Link> parse_identity(std::span<const std::byte> bytes);

}  // namespace farandole
