// NameTable: which 32-bit id stands for which signature, and which of them was used least recently.
// The coordinator decides what is in it; followers keep a copy by the stream of decisions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>

#include "coordination/signature.h"

namespace farandole {

class NameTable {
 public:
  NameTable() = default;
  NameTable(const NameTable&) = delete;
  NameTable& operator=(const NameTable&) = delete;

  std::size_t size() const { return ids_.size(); }
  // The signature of an id, null if there is none; stays valid until it is forgotten.
  const Signature* find(std::uint32_t id) const;
  std::optional<std::uint32_t> find(const Signature& signature) const;

  // Neither the id nor the signature may be in the table. A new entry is the most recent one.
  const Signature& define(std::uint32_t id, Signature signature);
  // The id must be in the table, for both.
  void touch(std::uint32_t id);
  void forget(std::uint32_t id);
  // The table must not be empty.
  std::uint32_t least_recent() const;

 private:
  using Uses = std::list<std::uint32_t>;  // ids, least recent first
  struct Entry {
    const Signature* signature;  // the key in ids_, whose address is stable
    Uses::iterator use;
  };

  Uses uses_;
  std::unordered_map<Signature, std::uint32_t, SignatureHash> ids_;
  std::unordered_map<std::uint32_t, Entry> entries_;
};

}  // namespace farandole
