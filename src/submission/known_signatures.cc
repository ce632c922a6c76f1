#include "submission/known_signatures.h"

#include <new>
#include <utility>

#include "submission/submission_check.h"

namespace farandole {

KnownSignatures::Entry* KnownSignatures::take(const Submission& submission) {
  const auto found = entries_.find(submission.name);
  if (found == entries_.end()) {
    if (!given_up_.empty() && given_up_.contains(digest_of(submission.name))) return nullptr;
    if (entries_.size() >= names_max_) forget_unused();
    KnownSignature known(signature_of(submission));
    return &entries_.emplace(submission.name, Entry{std::move(known)}).first->second;
  }
  Entry& entry = found->second;
  if (entry.in_use) return nullptr;
  if (!describes(entry.known.signature, submission))
    entry.known = KnownSignature(signature_of(submission));
  entry.in_use = true;
  return &entry;
}

void KnownSignatures::give_up(Entry& entry) noexcept {
  try {
    given_up_.insert(entry.known.name_digest);
  } catch (const std::bad_alloc&) {
    return;
  }
  forget(entry);
}

void KnownSignatures::forget(Entry& entry) noexcept {
  entries_.erase(entries_.find(entry.known.signature.name));
}

void KnownSignatures::forget_unused() {
  std::erase_if(entries_, [](const auto& entry) { return !entry.second.in_use; });
}

}  // namespace farandole
