// OutputOptions: what the launcher does with the output of its workers.
#pragma once

#include <cstddef>
#include <set>
#include <string>

#include "output/line_prefix.h"
#include "output/line_splitter.h"

namespace farandole {

struct OutputOptions {
  LinePrefix prefix{};                         // the text before every shown line
  std::set<int> shown_ranks;                   // empty: all ranks
  std::string folder;                          // the folder of RankFiles; empty: no files
  std::size_t line_bytes_max = kLineBytesMax;  // longer lines are cut
  bool uses_terminals = true;                  // workers get terminals if we write to a terminal
  // Whether our lines have colors even if we do not write to a terminal.
  bool always_has_colors = false;
  int box_columns = 100;  // the width of the failure box in a file or pipe
};

}  // namespace farandole
