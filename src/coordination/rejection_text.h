// Error texts for rejected calls. There are four reasons: the signatures differ under one name; an
// automatic name (which the engine gives to an unnamed call) stands for different calls; the call
// is invalid on some ranks; or it cannot run while some ranks have joined.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/signature.h"

namespace farandole {

// One signature, and the ranks that have submitted it.
struct Variant {
  Signature signature;
  std::vector<int> ranks;
};

// Names the tensor and the properties that differ, shows in a table of several lines which ranks
// have which values, and says what to do. At most kRejectionTextBytesMax bytes. There must be at
// least two variants, all with the same name.
std::string mismatch_text(std::vector<Variant> variants);

// The ranks that have submitted a call, by SubmissionContext::unnamed_number.
using RanksByNumber = std::map<std::uint32_t, std::vector<int>>;

// For an automatic name that stands for different calls on different ranks. Says which ranks have
// submitted which call under the name, and what to do. At most kRejectionTextBytesMax bytes. There
// must be at least two numbers.
std::string unnamed_text(const Signature& signature, const RanksByNumber& ranks_by_number);

// For a call that is invalid on some ranks: says what is wrong, and on which ranks, in one line for
// each variant. At most kRejectionTextBytesMax bytes. At least one variant must have a text in
// `call_error`.
std::string call_error_text(std::vector<Variant> variants);

// For a call that cannot run because `joined_ranks` have joined. Names these ranks, the operations
// that still run, and what to do. At most kRejectionTextBytesMax bytes.
std::string joined_text(const Signature& signature, const std::vector<int>& joined_ranks);

}  // namespace farandole
