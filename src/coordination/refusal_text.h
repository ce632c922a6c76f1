// What users read when their ranks submit different things under one name, something that is wrong
// on some, or something that cannot run while some have joined.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/signature.h"

namespace farandole {

// The ranks that submitted this.
struct Variant {
  Signature signature;
  std::vector<int> ranks;
};

// Names the tensor and what differs, shows who has which value as a table of several lines, says
// what to do; at most kRefusalTextBytesMax. All variants have the same name; there are at least
// two.
std::string refusal_text(std::vector<Variant> variants);

// For a call that is wrong on some ranks: what is wrong on which, a line for each; at most
// kRefusalTextBytesMax. One variant at least has a fault.
std::string fault_text(std::vector<Variant> variants);

// For a call whose operation does not run joined; `joined_ranks` have not submitted it. Names them,
// what goes on, and what to do; at most kRefusalTextBytesMax.
std::string joined_text(const Signature& signature, const std::vector<int>& joined_ranks);

}  // namespace farandole
