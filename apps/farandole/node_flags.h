// The flags of `farandole run` for jobs over several hosts.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "farandole/status.h"
#include "nodes/node_options.h"

namespace farandole {

// An object cannot be copied or moved, because the parser holds references into it.
class NodeFlags {
 public:
  explicit NodeFlags(CLI::App& command);
  NodeFlags(const NodeFlags&) = delete;
  NodeFlags& operator=(const NodeFlags&) = delete;

  // Call it after parsing. Empty if none of the flags was given. Errors: kFixCall.
  Result<std::optional<NodeOptions>> options() const { return parse_node_options(words_); }
  std::string secret_path() const { return words_.secret.value_or(""); }

 private:
  NodeWords words_;
};

}  // namespace farandole
