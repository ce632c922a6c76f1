// JobOptions: what the user asked for.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace farandole {

struct JobOptions {
  int workers = 1;
  std::vector<std::string> command;  // the program and its arguments
  // Environment variables that every worker gets, over what it inherits.
  std::vector<std::pair<std::string, std::string>> settings;
  // How long workers may take to end after a signal was passed on to them.
  std::chrono::seconds grace{30};
};

}  // namespace farandole
