// What can be said about a submission without asking anybody: whether the call is right, and its
// Signature. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/signature.h"
#include "farandole/engine.h"

namespace farandole {

// How the names of the engine's own calls begin.
inline constexpr std::string_view kOwnNames = "farandole.";
// What is between operation and number in the names that the engine gives to calls without one.
inline constexpr std::string_view kAutomaticNames = ".noname.";

// Whether the group can hear of it. Errors: kFixCall naming the value: a number that is in no
// table, a name or a shape out of bounds, a name of the engine's own, or a group whose `ranks` this
// `rank` is not among.
Status check_submission(const Submission& submission, std::span<const int> ranks, int rank);
// Whether it can run, as far as this rank sees; of a submission that passed the check above.
// Errors: kFixCall naming the value. The others will submit theirs, so all must hear of it.
Status call_error_of(const Submission& submission, std::span<const int> ranks, int rank);

// "allreduce `x`", for texts.
std::string title(const Submission& submission);

// What must be equal on all ranks. Needs a name and a checked submission, with its call error if it
// has one.
Signature signature_of(const Submission& submission);
// Whether `signature` is signature_of(submission), without making it.
bool describes(const Signature& signature, const Submission& submission);

// Elements, and bytes of one index of the first dimension. Of a checked submission.
std::int64_t element_count(const Submission& submission);
std::int64_t row_bytes(const Submission& submission);

}  // namespace farandole
