// What users read when their ranks submit different things under one name.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "coordination/signature.h"

namespace farandole {

// The ranks that submitted this.
struct Variant {
  Signature signature;
  std::vector<int> ranks;
};

// Names the tensor, what differs, who has which value, and what to do; at most
// kRefusalTextBytesMax. All variants have the same name; there are at least two.
std::string refusal_text(std::vector<Variant> variants);

// "rank 3", "ranks 0, 2–5": sorts.
std::string rank_list(std::vector<int> ranks);

}  // namespace farandole
