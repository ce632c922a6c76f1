// Checks whether a submission is valid, as far as one rank can see, and computes its Signature. All
// functions are pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/signature.h"
#include "farandole/engine.h"

namespace farandole {

// The names of the engine's own calls begin with this text.
inline constexpr std::string_view kReservedPrefix = "farandole.";
// The name of an unnamed call consists of its operation, this text and a number.
inline constexpr std::string_view kAutomaticNameInfix = ".noname.";

// The longest channel of a message.
inline constexpr std::size_t kChannelBytesMax = 256;

// Checks whether the submission can be announced to its group at all. Errors: kFixCall with the
// value, for an unknown number of an operation, dtype, device or reduce op; for a name that is too
// long or reserved; for an invalid shape; if `rank` is not one of the group's `ranks`; if the peer
// of a message is not another rank of the group.
Status check_submission(const Submission& submission, std::span<const int> ranks, int rank);
// Checks whether a submission that has passed check_submission() can run, as far as this rank can
// see. Errors: kFixCall with the value. The caller must announce the error, because the other ranks
// submit this call, too, and would wait for this rank.
Status call_error_of(const Submission& submission, std::span<const int> ranks, int rank);

// Returns "allreduce `x`", for example, for error texts.
std::string call_title(const Submission& submission);
// Returns kRebuildGroup: the call cannot finish because of `cause`.
Status cannot_finish_error(const Submission& submission, const Status& cause);

// Returns the properties that must be equal on all ranks. The submission must be checked and have a
// name. If call_error_of() has returned an error, the caller must have stored its text in
// submission.call_error.
Signature signature_of(const Submission& submission);
// Whether `signature` equals signature_of(submission); computed without an allocation.
bool is_signature_of(const Signature& signature, const Submission& submission);

// The next two functions are for checked submissions. A row is the part of the tensor at one index
// of the first dimension.
std::int64_t element_count(const Submission& submission);
std::int64_t row_bytes(const Submission& submission);

}  // namespace farandole
