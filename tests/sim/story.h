// Story: the events of a simulation, one line each, and one digest of all lines. Two runs of a seed
// have equal stories if and only if their digests are equal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <string>
#include <utility>

#include "base/format.h"

namespace farandole::sim {

using Time = std::int64_t;  // simulated microseconds

struct Telling {
  std::size_t lines_max;  // how many of the last lines are kept; the digest covers all
  bool aloud = false;     // also print each line at once, so that a crash does not lose it
};

class Story {
 public:
  explicit Story(Telling telling) : telling_(telling) {}

  template <class... Arguments>
  void tell(Time now, fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    add(format_text("{:>9} µs  ", now) + format_text(text, std::forward<Arguments>(arguments)...));
  }

  std::uint64_t number() const { return number_; }
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  void add(std::string line) {
    for (const char c : line)  // FNV-1a
      number_ = (number_ ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    if (telling_.aloud) std::puts(line.c_str());
    lines_.push_back(std::move(line));
    if (lines_.size() > telling_.lines_max) lines_.pop_front();
  }

  Telling telling_;
  std::uint64_t number_ = 0xcbf29ce484222325U;
  std::deque<std::string> lines_;
};

}  // namespace farandole::sim
