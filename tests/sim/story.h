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

struct StoryOptions {
  std::size_t lines_max;        // how many of the last lines are kept; the digest covers all
  bool prints_at_once = false;  // also print each line at once, so that a crash does not lose it
};

class Story {
 public:
  explicit Story(StoryOptions story_options) : options_(story_options) {}

  template <class... Arguments>
  void tell(Time now, fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    add(format_text("{:>9} µs  ", now) + format_text(text, std::forward<Arguments>(arguments)...));
  }

  std::uint64_t digest() const { return digest_; }
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  void add(std::string line) {
    for (const char c : line)  // FNV-1a
      digest_ = (digest_ ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    if (options_.prints_at_once) std::puts(line.c_str());
    lines_.push_back(std::move(line));
    if (lines_.size() > options_.lines_max) lines_.pop_front();
  }

  StoryOptions options_;
  std::uint64_t digest_ = 0xcbf29ce484222325U;
  std::deque<std::string> lines_;
};

}  // namespace farandole::sim
