// Planted bugs, to test that the simulator notices them. Most of them change messages on the wire,
// as if the code that wrote or read the messages were wrong. The names A1 to A7 are those of the
// rules in docs/simulator.md.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "simulation.h"

namespace farandole::sim {

struct NamedBug {
  std::string name;
  Bug bug;
  std::string symptom;                 // text that the reported problem must contain
  bool fails_check = false;            // a CHECK of the code under test reports the problem
  ScriptKind kind = ScriptKind::kAny;  // the kind of jobs that show the bug

  friend std::ostream& operator<<(std::ostream& out, const NamedBug& named) {
    return out << named.name;
  }
};

std::vector<NamedBug> all_bugs();
// Each of these two functions returns a part of the list of all_bugs().
std::vector<NamedBug> relay_bugs();
std::vector<NamedBug> host_bugs();

}  // namespace farandole::sim
