// Plan: the steps that the group expects, because they have repeated. A fragment is a set of
// signatures that the program submits together. It consists of buckets in a fixed order. Fragments
// are disjoint. An edge says that one fragment may follow another one. The coordinator edits the
// plan; followers apply the same edits to their copies. A plan is only a prediction: a wrong plan
// costs time, but no result depends on it.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/digest.h"
#include "base/signature.h"
#include "control/messages.h"
#include "coordination/name_table.h"
#include "farandole/status.h"

namespace farandole {

// Computes a step's identity: 64 bits from the digests of its signatures, in their order. The
// identity depends only on these digests, so all members compute the same identity for the same
// step.
class ContentIdentity {
 public:
  void add(const InternedSignature& interned) {
    first_digest_ = count_ == 0 ? interned.digest : first_digest_;
    digest_of_all_.add(interned.digest);
    ++count_;
  }

  std::uint64_t value() const {
    if (count_ == 1) return first_digest_;
    Digest digest = digest_of_all_;
    digest.add(count_);
    return digest.value();
  }

 private:
  std::uint64_t count_ = 0;
  std::uint64_t first_digest_ = 0;
  Digest digest_of_all_;
};

class Plan {
 public:
  struct Bucket {  // submissions that share a step
    std::vector<std::uint32_t> ids;
    // the signatures of `ids`, owned by the NameTable
    std::vector<const InternedSignature*> signatures;
    std::uint64_t identity = 0;
  };
  struct Fragment;
  struct Edge {
    const Fragment* to;
    EdgeKind kind;
    bool includes(EdgeKind wanted) const {
      return (static_cast<int>(kind) & static_cast<int>(wanted)) == static_cast<int>(wanted);
    }
  };
  struct Fragment {
    std::uint32_t number = 0;
    std::vector<Bucket> buckets;   // at least one
    std::vector<Edge> successors;  // in the order in which they were learned
  };

  // `names` must outlive this object, and must not forget an id while the id is in the plan.
  explicit Plan(const NameTable& names) : names_(names) {}
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // Errors: kStop, which says how the edit contradicts the plan or the names.
  Status apply(const AddBucket& edit);
  Status apply(const DropFragment& edit);
  Status apply(const AddEdge& edit);

  // The next two functions find a fragment by its number, or by the digest of one of its
  // signatures; null if there is none. The pointer is valid until the fragment is dropped.
  const Fragment* find(std::uint32_t fragment) const;
  const Fragment* fragment_of(std::uint64_t digest) const;
  // Whether a signature of this name is planned.
  bool has_name(std::uint64_t name_digest) const {
    return signatures_per_name_.contains(name_digest);
  }
  const std::unordered_map<std::uint32_t, Fragment>& fragments() const { return fragments_; }

 private:
  const NameTable& names_;
  std::unordered_map<std::uint32_t, Fragment> fragments_;  // by number
  std::unordered_map<std::uint64_t, const Fragment*> fragments_by_digest_;
  // how many planned signatures each name has, by the digest of the name
  std::unordered_map<std::uint64_t, int> signatures_per_name_;
};

}  // namespace farandole
