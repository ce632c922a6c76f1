// Follower: one member's part in agreeing. It announces what its user submits and turns the
// coordinator's stream into decisions. Every member has one, the coordinator's too.
// State: learn (announce everything, take steps as they come; once joined, also those of others).
// Further states add their items to the stream and their handlers here.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "base/bytes.h"
#include "coordination/decision.h"
#include "coordination/messages.h"
#include "coordination/name_table.h"
#include "coordination/signature.h"
#include "farandole/status.h"

namespace farandole {

class Follower {
 public:
  // `rank` is our rank in the world, for texts.
  explicit Follower(int rank) : rank_(rank) {}

  // Errors: kFixCall when the name is in flight here, the signature is out of bounds, or we have
  // joined and the release was not taken yet.
  Status submit(Signature signature);
  // A message of the coordinator's stream. Errors: kStop saying what is wrong with it; the group is
  // over then, for nothing that follows in the stream can be trusted.
  Status receive(std::span<const std::byte> message);

  std::optional<Bytes> next_message() { return announcements_.take(); }
  // A name is in flight until its decision has been taken here.
  std::optional<Decision> next_decision();

 private:
  Status apply(const Define& item);
  Status apply(const Forget& item);
  Status apply(const Issue& item);
  Status apply(const Refuse& item);
  Status apply(const ReleaseAll& item);
  Status expect_next(std::uint32_t generation, std::uint32_t sequence);
  Result<Step> step_of(const Issue& item, const Signature& signature) const;

  int rank_;
  NameTable names_;
  std::uint32_t id_defined_last_ = 0;
  std::uint32_t sequence_next_ = 1;
  std::unordered_map<std::string, Signature> waiting_;  // announced, no decision yet
  std::unordered_set<std::string> decided_;             // the names in decisions_
  std::deque<Decision> decisions_;
  std::optional<std::string> join_name_;  // of our join, until its release was taken
  bool joined_ = false;                   // until the release in the stream
  MessagePacker announcements_;
};

}  // namespace farandole
