// A message on its way in one group.
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
