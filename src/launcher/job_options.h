// JobOptions: what the user asked for.
#pragma once

#include <chrono>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/line_prefix.h"

namespace farandole {

// What becomes of the output of the workers.
struct OutputOptions {
  LinePrefix prefix;          // before every line that is shown
  std::set<int> shown_ranks;  // empty: all
  std::string folder;         // for the files of RankFiles; empty: none
};

// What a program that starts the job has handed over, to hear of it and to talk with the workers.
// Descriptors, all borrowed; the other ends are that program's.
struct CallerDescriptors {
  int handle = -1;            // its pidfd: the job ends when the program does; −1: none
  int report = -1;            // a pipe for the lines of CallerReport; −1: none
  std::vector<int> channels;  // by rank, for the workers to inherit; empty: none
  std::vector<int> streams;   // by rank, standard output and error instead of ours; empty: none
};

struct JobOptions {
  int workers = 1;
  std::vector<std::string> command;  // the program and its arguments
  // Environment variables that every worker gets, over what it inherits.
  std::vector<std::pair<std::string, std::string>> settings;
  // How long workers may take to end after a signal was passed on to them.
  std::chrono::seconds grace{30};
  OutputOptions output;
  // How long a call may wait for other ranks before the user is told; 0: for ever.
  std::chrono::seconds stall_warning{10};
  CallerDescriptors caller;
};

}  // namespace farandole
