// Coordinator: member 0's part in agreeing. It matches the announcements of all members by name and
// writes one ordered stream of decisions for everybody.
// State: learn (a name that all have announced becomes the next step, or a refusal). Further states
// add their messages and their handlers here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "coordination/messages.h"
#include "coordination/name_table.h"
#include "coordination/signature.h"
#include "farandole/status.h"

namespace farandole {

class Coordinator {
 public:
  // `ranks` are the world ranks of the members, for texts. `names_max` bounds the table of ids.
  Coordinator(std::vector<int> ranks, std::size_t names_max);

  // The announcements of a member, 0 … members − 1. Errors: kStop saying what is wrong with them.
  Status receive(int from, std::span<const std::byte> message);
  // The next message of the stream; every member gets each of them, in this order.
  std::optional<Bytes> next_message() { return stream_.take(); }

 private:
  // The members that announced one signature under a name.
  struct Candidate {
    Signature signature;
    std::uint32_t id;  // by which they announced it; 0 if in full
    std::vector<int> members;
  };
  using Candidates = std::vector<Candidate>;

  Status apply(int from, const AnnounceInFull& item);
  Status apply(int from, const AnnounceById& item);
  Status note(int from, const Signature& signature, std::uint32_t id);
  void decide(const std::string& name, const Candidates& candidates);
  void issue(const Candidate& candidate);
  std::uint32_t define(const Signature& signature);
  void forget(std::uint32_t id);
  void refuse(const std::string& name, const Candidates& candidates);

  std::vector<int> ranks_;
  std::size_t names_max_;
  NameTable names_;
  std::uint32_t id_defined_last_ = 0;
  std::uint32_t sequence_next_ = 1;
  std::unordered_map<std::string, Candidates> pending_;  // by name
  MessagePacker stream_;
};

}  // namespace farandole
