// JobOptions: what the user asked for.
#pragma once

#include <chrono>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/line_prefix.h"

namespace farandole {

// What to do with the output of the workers.
struct OutputOptions {
  LinePrefix prefix;          // written before every line that is shown
  std::set<int> shown_ranks;  // empty: all ranks
  std::string folder;         // where RankFiles writes its files; empty: no files
};

// Descriptors from the program that started the job, if it is not a shell. Through them it follows
// the job and talks to the workers. All are borrowed; that program holds the other ends.
struct CallerDescriptors {
  int handle = -1;            // that program's pidfd; the job ends when the program ends; −1: none
  int report = -1;            // a pipe to which CallerReport writes; −1: none
  std::vector<int> channels;  // by rank, inherited by the workers; empty: none
  std::vector<int> streams;   // by rank, for standard output and error; empty: they go to ours
};

struct JobOptions {
  int workers = 1;
  std::vector<std::string> command;  // the program and its arguments
  // Environment variables that every worker gets. They override what it inherits.
  std::vector<std::pair<std::string, std::string>> settings;
  // How long workers may take to end after they received a signal.
  std::chrono::seconds grace{30};
  OutputOptions output;
  // How long a call may wait for other ranks before the launcher prints a warning; 0: no warnings.
  std::chrono::seconds stall_warning{10};
  CallerDescriptors caller;
};

}  // namespace farandole
