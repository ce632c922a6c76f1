#include "submission/interned_signatures.h"

#include <new>
#include <utility>

#include "submission/submission_check.h"

namespace farandole {

std::optional<Operation> InternedSignatures::operation_using(const std::string& name) const {
  const auto entry = entries_.find(name);
  if (entry != entries_.end())
    return entry->second.in_use ? std::optional(entry->second.interned.signature.operation)
                                : std::nullopt;
  const auto retired =
      retired_names_.empty() ? retired_names_.end() : retired_names_.find(digest_of(name));
  return retired == retired_names_.end() ? std::nullopt : std::optional(retired->second);
}

InternedSignatures::Entry* InternedSignatures::acquire(const Submission& submission) {
  const auto entry_position = entries_.find(submission.name);
  if (entry_position == entries_.end()) {
    if (!retired_names_.empty() && retired_names_.contains(digest_of(submission.name)))
      return nullptr;
    if (entries_.size() >= names_max_) erase_unused();
    InternedSignature interned(signature_of(submission));
    return &entries_.emplace(submission.name, Entry{std::move(interned)}).first->second;
  }
  Entry& entry = entry_position->second;
  if (entry.in_use) return nullptr;
  if (!is_signature_of(entry.interned.signature, submission))
    entry.interned = InternedSignature(signature_of(submission));
  entry.in_use = true;
  return &entry;
}

void InternedSignatures::retire(Entry& entry) noexcept {
  try {
    retired_names_.emplace(entry.interned.name_digest, entry.interned.signature.operation);
  } catch (const std::bad_alloc&) {
    return;
  }
  erase(entry);
}

void InternedSignatures::release_all() noexcept {
  for (auto& [name, entry] : entries_) release(entry);
  retired_names_.clear();
}

void InternedSignatures::erase(Entry& entry) noexcept {
  entries_.erase(entries_.find(entry.interned.signature.name));
}

void InternedSignatures::erase_unused() {
  std::erase_if(entries_, [](const auto& entry) { return !entry.second.in_use; });
}

}  // namespace farandole
