#include "board.h"

#include <utility>

#include "base/check.h"

namespace farandole::sim {

SimulatedBoard::SimulatedBoard(int members) : lines_(static_cast<std::size_t>(members)) {
  for (auto& tally : word_tallies_) tally[0] = members;
  for (auto& tally : done_word_tallies_) tally[0] = members;
}

void SimulatedBoard::write_entry(int member, std::uint32_t sequence, Entry entry) {
  write(member,
        {.kind = Write::Kind::kEntry, .slot = slot_of(sequence), .entry = std::move(entry)});
}

void SimulatedBoard::write_word(int member, std::uint32_t sequence, std::uint64_t word) {
  write(member, {.kind = Write::Kind::kWord, .slot = slot_of(sequence), .word = word});
}

void SimulatedBoard::write_done(int member, std::uint32_t sequence, std::uint64_t word) {
  write(member, {.kind = Write::Kind::kDone, .slot = slot_of(sequence), .word = word});
}

void SimulatedBoard::write_all_hosts_entered(std::uint64_t word) {
  own_verdict_.all_hosts_entered = word;
  lines(0).writes.push_back({.kind = Write::Kind::kVerdict, .verdict = own_verdict_});
}

void SimulatedBoard::write_last_sequence(std::uint32_t sequence) {
  own_verdict_.last_sequence = sequence;
  lines(0).writes.push_back({.kind = Write::Kind::kVerdict, .verdict = own_verdict_});
}

void SimulatedBoard::apply(Line& line, const Write& write) {
  switch (write.kind) {
    case Write::Kind::kEntry:
      line.entry = write.entry;
      return;
    case Write::Kind::kWord:
      line.word = write.word;
      return;
    case Write::Kind::kDone:
      line.done_word = write.word;
      return;
    case Write::Kind::kVerdict:
      return;
  }
}

void SimulatedBoard::write(int member, Write write) {
  apply(lines(member).own_lines[write.slot], write);
  lines(member).writes.push_back(std::move(write));
}

bool SimulatedBoard::settle(int member) {
  auto& writes = lines(member).writes;
  CHECK(!writes.empty(), "each settle() has a write");
  const auto write = std::move(writes.front());
  writes.pop_front();
  if (write.kind == Write::Kind::kVerdict) {
    visible_verdict_ = write.verdict;
    return true;
  }
  auto& line = lines(member).visible_lines[write.slot];
  const auto word = line.word;
  const auto done_word = line.done_word;
  apply(line, write);
  if (write.kind == Write::Kind::kWord)
    return update_tally(word_tallies_[write.slot], word, line.word);
  if (write.kind == Write::Kind::kDone)
    return update_tally(done_word_tallies_[write.slot], done_word, line.done_word);
  return false;
}

bool SimulatedBoard::update_tally(Tally& tally, std::uint64_t old_word,
                                  std::uint64_t new_word) const {
  if (--tally[old_word] == 0) tally.erase(old_word);
  return ++tally[new_word] == members();
}

const SimulatedBoard::Line& SimulatedBoard::line(int reader, int member,
                                                 std::uint32_t sequence) const {
  const auto& lines = lines_[static_cast<std::size_t>(member)];
  return (reader == member ? lines.own_lines : lines.visible_lines)[slot_of(sequence)];
}

std::uint64_t SimulatedBoard::word(int reader, int member, std::uint32_t sequence) const {
  return line(reader, member, sequence).word;
}

std::uint64_t SimulatedBoard::done_word(int reader, int member, std::uint32_t sequence) const {
  return line(reader, member, sequence).done_word;
}

const Entry& SimulatedBoard::entry(int reader, int member, std::uint32_t sequence) const {
  return line(reader, member, sequence).entry;
}

}  // namespace farandole::sim
