// Plan: what was seen to repeat. Atoms are sets of signatures that come together, disjoint, each in
// an order and in buckets; successions say which atom may follow which. The coordinator edits it;
// followers keep a copy by the stream. Only a prediction: nothing that runs depends on it.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/digest.h"
#include "base/signature.h"
#include "coordination/messages.h"
#include "coordination/name_table.h"
#include "farandole/status.h"

namespace farandole {

// What a step does as 64 bits, of the digests of what lies in it, in order. The same whoever
// predicted it, and from what.
class ContentIdentity {
 public:
  void add(const KnownSignature& known) {
    first_ = count_ == 0 ? known.digest : first_;
    all_.add(known.digest);
    ++count_;
  }

  std::uint64_t value() const {
    if (count_ == 1) return first_;
    Digest digest = all_;
    digest.add(count_);
    return digest.value();
  }

 private:
  std::uint64_t count_ = 0;
  std::uint64_t first_ = 0;
  Digest all_;
};

class Plan {
 public:
  struct Bucket {  // what shares a step
    std::vector<std::uint32_t> ids;
    std::vector<const KnownSignature*> members;  // the same, of the table of names
    std::uint64_t identity = 0;
  };
  struct Atom;
  struct Succession {
    const Atom* to;
    Where where;
    bool holds(Where place) const {
      return (static_cast<int>(where) & static_cast<int>(place)) == static_cast<int>(place);
    }
  };
  struct Atom {
    std::uint32_t number = 0;
    std::vector<Bucket> buckets;         // at least one
    std::vector<Succession> successors;  // in the order in which they were learned
  };

  // `names` outlives this; what is planned must not be forgotten there.
  explicit Plan(const NameTable& names) : names_(names) {}
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // Errors: kStop saying how it contradicts what is planned and named.
  Status apply(const AddBucket& edit);
  Status apply(const DropAtom& edit);
  Status apply(const AddSuccession& edit);

  // Null if there is none. An atom stays where it is until it is dropped.
  const Atom* find(std::uint32_t atom) const;
  const Atom* atom_of(std::uint64_t digest) const;
  // Whether a signature of this name is planned.
  bool has_name(std::uint64_t name_digest) const { return names_planned_.contains(name_digest); }
  const std::unordered_map<std::uint32_t, Atom>& atoms() const { return atoms_; }

 private:
  const NameTable& names_;
  std::unordered_map<std::uint32_t, Atom> atoms_;  // by number
  std::unordered_map<std::uint64_t, const Atom*> atoms_by_digest_;
  std::unordered_map<std::uint64_t, int> names_planned_;  // how many signatures of that name
};

}  // namespace farandole
