// A message on its way from one member of a group to another.
#pragma once

#include "base/bytes.h"

namespace farandole::sim {

struct Envelope {
  int group;
  int from;  // member
  int to;
  Bytes bytes;
};

}  // namespace farandole::sim
