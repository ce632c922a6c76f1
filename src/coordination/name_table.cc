#include "coordination/name_table.h"

#include <utility>

#include "base/check.h"

namespace farandole {

const Signature* NameTable::find(std::uint32_t id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : found->second.signature;
}

std::optional<std::uint32_t> NameTable::find(const Signature& signature) const {
  const auto found = ids_.find(signature);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const Signature& NameTable::define(std::uint32_t id, Signature signature) {
  const auto [at, is_new] = ids_.emplace(std::move(signature), id);
  CHECK(is_new, "a signature has one id at a time");
  const bool is_new_id =
      entries_.emplace(id, Entry{&at->first, uses_.insert(uses_.end(), id)}).second;
  CHECK(is_new_id, "an id stands for one signature");
  return at->first;
}

void NameTable::touch(std::uint32_t id) {
  const auto found = entries_.find(id);
  CHECK(found != entries_.end(), "only an id of the table can be used");
  uses_.splice(uses_.end(), uses_, found->second.use);
}

void NameTable::forget(std::uint32_t id) {
  const auto found = entries_.find(id);
  CHECK(found != entries_.end(), "only an id of the table can be forgotten");
  uses_.erase(found->second.use);
  ids_.erase(ids_.find(*found->second.signature));
  entries_.erase(found);
}

std::uint32_t NameTable::least_recent() const {
  CHECK(!uses_.empty(), "an empty table has no least recent id");
  return uses_.front();
}

}  // namespace farandole
