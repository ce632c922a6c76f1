// SimulatedBoard: the flag board of one host part of a group. As on the real flag board, a member
// has two lines, writes its entry before its word, and writes only its own lines. The member itself
// sees its writes at once; the other members see these writes later, in the same order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "coordination/decision.h"

namespace farandole::sim {

// The contents of a line, without its word. The values are the data of a step, one per call.
struct Entry {
  std::uint64_t identity = 0;
  std::vector<std::int64_t> values = {};
  std::vector<std::int64_t> declared_counts = {};
};

class SimulatedBoard {
 public:
  explicit SimulatedBoard(int members);

  static std::uint64_t word_of(const StepNumber& step_number) {
    return std::uint64_t{step_number.generation} << 32U | step_number.sequence;
  }

  int members() const { return static_cast<int>(lines_.size()); }
  // The other members see each of these writes only after settle() was called once for this write.
  void write_entry(int member, std::uint32_t sequence, Entry entry);
  void write_word(int member, std::uint32_t sequence, std::uint64_t word);
  // For algorithms that wait for the parts of all members: says that this member has finished its
  // part of the step.
  void write_done(int member, std::uint32_t sequence, std::uint64_t word);
  // A write of member 0: says that all members on all hosts have entered a step with equal
  // identities.
  void write_all_hosts_entered(std::uint64_t word);
  // A write of member 0: says that the group is over after this sequence, because a rank has left.
  void write_last_sequence(std::uint32_t sequence);
  // Makes the member's oldest write that the others cannot see yet visible to them. Returns true if
  // a member may have waited for this write: the write makes all words or all done words of a slot
  // equal, or it comes from member 0 and concerns all hosts.
  bool settle(int member);

  // What `reader` sees in the line of `member`.
  std::uint64_t word(int reader, int member, std::uint32_t sequence) const;
  std::uint64_t done_word(int reader, int member, std::uint32_t sequence) const;
  const Entry& entry(int reader, int member, std::uint32_t sequence) const;
  std::uint64_t all_hosts_entered(int reader) const { return verdict(reader).all_hosts_entered; }
  const std::optional<std::uint32_t>& last_sequence(int reader) const {
    return verdict(reader).last_sequence;
  }

 private:
  struct Line {
    std::uint64_t word = 0;
    std::uint64_t done_word = 0;
    Entry entry = {};
  };
  // What member 0 says about all hosts.
  struct Verdict {
    std::uint64_t all_hosts_entered = 0;
    std::optional<std::uint32_t> last_sequence = {};
  };
  struct Write {
    enum class Kind : std::uint8_t { kEntry, kWord, kDone, kVerdict };
    Kind kind;
    std::size_t slot = 0;
    std::uint64_t word = 0;
    Entry entry = {};
    Verdict verdict = {};
  };
  // How many members have each word in a slot.
  using Tally = std::map<std::uint64_t, int>;
  // A member's two lines: as the member sees them, and as the other members see them.
  struct MemberLines {
    std::array<Line, 2> own_lines;
    std::array<Line, 2> visible_lines;
    std::deque<Write> writes;
  };

  static std::size_t slot_of(std::uint32_t sequence) { return sequence % 2; }
  const Line& line(int reader, int member, std::uint32_t sequence) const;
  const Verdict& verdict(int reader) const { return reader == 0 ? own_verdict_ : visible_verdict_; }
  MemberLines& lines(int member) { return lines_[static_cast<std::size_t>(member)]; }
  static void apply(Line& line, const Write& write);
  void write(int member, Write write);
  // Moves one member from one word to another. Returns whether all members now have `new_word`.
  bool update_tally(Tally& tally, std::uint64_t old_word, std::uint64_t new_word) const;

  std::vector<MemberLines> lines_;
  std::array<Tally, 2> word_tallies_;       // by slot
  std::array<Tally, 2> done_word_tallies_;  // by slot
  Verdict own_verdict_;
  Verdict visible_verdict_;
};

}  // namespace farandole::sim
