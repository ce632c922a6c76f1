// Scenario: what the explorer runs. It has the threads, the members that they belong to, and what
// may happen to the members.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "automaton.h"
#include "model_atomics.h"

namespace farandole::model {

struct ThreadSpec {
  std::string name;
  int member = 0;                      // the thread dies with this member
  bool daemon = false;                 // the thread may wait for ever
  std::unique_ptr<ModelThread> start;  // the thread as it begins
};

struct Scenario {
  Arena* arena = nullptr;  // borrowed
  std::vector<ThreadSpec> threads;
  std::vector<bool> mortal;  // by member: whether it may die
  int deaths_max = 0;
  std::vector<Ghost> reaped;  // by member; 1 once the member is dead and has no store pending
  // Once `since` is not 0, only threads of the owner may change the word.
  struct Guard {
    Word word;
    Ghost since;
    int owner;
  };
  std::vector<Guard> guards;  // at most one per word
};

}  // namespace farandole::model
