#include "coordination/name_table.h"

#include <utility>

#include "base/check.h"

namespace farandole {

const InternedSignature* NameTable::find(std::uint32_t id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second.interned;
}

std::uint32_t NameTable::id_of(std::uint64_t digest) const {
  const auto found = ids_.find(digest);
  return found == ids_.end() ? 0 : found->second;
}

const InternedSignature& NameTable::define(std::uint32_t id, Signature signature) {
  const auto [entry, is_new_id] = entries_.try_emplace(
      id, Entry{InternedSignature(std::move(signature)), recency_.insert(recency_.end(), id)});
  CHECK(is_new_id, "an id stands for one signature");
  const bool is_new = ids_.emplace(entry->second.interned.digest, id).second;
  CHECK(is_new, "a signature has one id at a time");
  return entry->second.interned;
}

void NameTable::touch(std::uint32_t id) {
  const auto found = entries_.find(id);
  CHECK(found != entries_.end(), "only an id of the table can be used");
  recency_.splice(recency_.end(), recency_, found->second.position);
}

void NameTable::forget(std::uint32_t id) {
  const auto found = entries_.find(id);
  CHECK(found != entries_.end(), "only an id of the table can be forgotten");
  recency_.erase(found->second.position);
  ids_.erase(found->second.interned.digest);
  entries_.erase(found);
}

std::uint32_t NameTable::least_recent_id() const {
  CHECK(!recency_.empty(), "an empty table has no least recent id");
  return recency_.front();
}

}  // namespace farandole
