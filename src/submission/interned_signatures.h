// InternedSignatures: the names of a group's calls, each with the signature that was submitted last
// under it. So a repeated call needs no new digest and no allocation. The class is not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/signature.h"
#include "farandole/engine.h"

namespace farandole {

// At most this many signatures of a group have an id in its agreement, and about this many unused
// signatures are kept.
inline constexpr std::size_t kNamesMax = 65536;

class InternedSignatures {
 public:
  struct Entry {
    InternedSignature interned;
    bool in_use = true;
  };

  // Keeps about `names_max` entries, or more if more are in use.
  explicit InternedSignatures(std::size_t names_max = kNamesMax) : names_max_(names_max) {}

  // Returns the operation of the call that uses the name, even if the handle of that call was
  // dropped; empty if the name is free.
  std::optional<Operation> operation_using(const std::string& name) const;
  // Returns the entry for a checked submission; after this call, the name is in use. Returns null
  // if the name was in use before. The entry does not change until release(), retire() or erase().
  // If this throws std::bad_alloc, the name is not in use.
  Entry* acquire(const Submission& submission);
  static void release(Entry& entry) { entry.in_use = false; }
  // Erases the entry, but its name stays in use forever. To save memory, only a digest of the name
  // and the operation are kept (about 40 bytes). Another name has the same digest with a
  // probability of 2^-64; then that name is rejected on all ranks. If there is no memory for the
  // digest, the entry stays, and nothing is thrown.
  void retire(Entry& entry) noexcept;
  // Releases all names, even those that were retired. No entry may belong to a call in flight.
  void release_all() noexcept;
  // Erases the entry, so that its name is no longer in use. Call it only for names that the engine
  // chose and will not choose again; for other names, call release() or retire().
  void erase(Entry& entry) noexcept;

  std::size_t size() const { return entries_.size(); }

 private:
  void erase_unused();

  std::size_t names_max_;
  std::unordered_map<std::string, Entry> entries_;
  // The digests of the names that stay in use forever, and the operations of their calls.
  std::unordered_map<std::uint64_t, Operation> retired_names_;
};

}  // namespace farandole
