// NameTable: which 32-bit id stands for which signature, and which id was used least recently. The
// coordinator decides what the table contains; followers apply the same changes to their copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>

#include "base/signature.h"

namespace farandole {

class NameTable {
 public:
  NameTable() = default;
  NameTable(const NameTable&) = delete;
  NameTable& operator=(const NameTable&) = delete;

  std::size_t size() const { return ids_.size(); }
  // The signature of an id; null if it has none. The pointer is valid until the id is forgotten.
  const InternedSignature* find(std::uint32_t id) const;
  // The id of the signature with this digest; 0 if there is none.
  std::uint32_t id_of(std::uint64_t digest) const;

  // Adds an entry as the most recently used one. Neither the id nor the signature may be in the
  // table.
  const InternedSignature& define(std::uint32_t id, Signature signature);
  // Makes the id the most recently used one. It must be in the table.
  void touch(std::uint32_t id);
  void forget(std::uint32_t id);          // the id must be in the table
  std::uint32_t least_recent_id() const;  // the table must not be empty

 private:
  using RecencyList = std::list<std::uint32_t>;  // ids, least recent first
  struct Entry {
    InternedSignature interned;
    RecencyList::iterator position;
  };

  RecencyList recency_;
  std::unordered_map<std::uint64_t, std::uint32_t> ids_;  // by digest
  std::unordered_map<std::uint32_t, Entry> entries_;
};

}  // namespace farandole
