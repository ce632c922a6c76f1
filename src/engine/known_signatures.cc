#include "engine/known_signatures.h"

#include "base/check.h"
#include "engine/submission_check.h"

namespace farandole {

KnownSignatures::Entry& KnownSignatures::take(const Submission& submission) {
  const auto found = entries_.find(submission.name);
  if (found == entries_.end()) {
    if (entries_.size() >= names_max_)
      std::erase_if(entries_, [](const auto& entry) { return !entry.second.in_flight; });
    return entries_.emplace(submission.name, Entry{KnownSignature(signature_of(submission))})
        .first->second;
  }
  Entry& entry = found->second;
  CHECK(!entry.in_flight, "a name is in flight once");
  if (!describes(entry.known.signature, submission))
    entry.known = KnownSignature(signature_of(submission));
  entry.in_flight = true;
  return entry;
}

}  // namespace farandole
