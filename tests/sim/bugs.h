// Bugs to be planted, so that we know the simulator would notice them: most tamper with messages on
// the wire, as if the code that wrote or read them were wrong.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "simulation.h"

namespace farandole::sim {

struct NamedBug {
  std::string name;
  Bug bug;
  std::string symptom;  // a part of what the simulation must say
  bool stops = false;   // it is a CHECK of the code itself that says so

  friend std::ostream& operator<<(std::ostream& out, const NamedBug& named) {
    return out << named.name;
  }
};

std::vector<NamedBug> all_bugs();

}  // namespace farandole::sim
