#include "node_flags.h"

namespace farandole {

NodeFlags::NodeFlags(CLI::App& command) {
  const auto add = [&](const char* flag, const char* type, std::optional<std::string>& value,
                       const char* help) {
    command.add_option(flag, value, help)
        ->type_name(type)
        ->group("Several hosts")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  };
  add("--join", "HOST:PORT", words_.join,
      "Where the nodes of the job meet: an address of the host of node 0, and a free port there");
  add("--nodes", "N", words_.nodes, "How many nodes the job has: one for each `farandole run`");
  add("--node", "K", words_.node, "The number of this node, from 0 to N - 1");
  add("--secret", "FILE", words_.secret,
      "The file with the secret of the job, the same on all hosts; see `farandole secret`");
}

}  // namespace farandole
