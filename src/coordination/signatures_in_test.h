// Signatures for the tests of this room.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/signature.h"

namespace farandole {

inline Signature named(const std::string& name) {
  Signature signature;
  signature.name = name;
  return signature;
}

inline Signature allreduce(const std::string& name, std::vector<std::int64_t> dimensions = {7}) {
  return {.name = name, .operation = Operation::kAllreduce, .dimensions = std::move(dimensions)};
}

inline Signature join(const std::string& name = "join") {
  return {.name = name, .operation = Operation::kJoin, .dimensions = {}};
}

}  // namespace farandole
