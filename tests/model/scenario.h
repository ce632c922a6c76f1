// Scenario: what the explorer explores. The threads, the members that they belong to, and what may
// happen to those.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "automaton.h"
#include "model_atomics.h"

namespace farandole::model {

struct ThreadSpec {
  std::string name;
  int member = 0;       // dies with it
  bool daemon = false;  // may wait for ever
  std::unique_ptr<ModelThread> start;
};

struct Scenario {
  Arena* arena = nullptr;  // borrowed
  std::vector<ThreadSpec> threads;
  std::vector<bool> mortal;  // by member
  int deaths_max = 0;
  std::vector<Ghost> reaped;  // by member; 1 once a dead one runs no more and has no store pending
  // Once `since` is not 0, no thread but the owner's may change the word any more.
  struct Guard {
    Word word;
    Ghost since;
    int owner;
  };
  std::vector<Guard> guards;  // one for a word
};

}  // namespace farandole::model
