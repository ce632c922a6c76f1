// Screen: merges the output of all workers so that no line is cut by another. At most one progress
// line is open at a time. On a terminal it is redrawn below lines that come meanwhile; in a file or
// pipe it is ended first.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/line_splitter.h"

namespace farandole {

// One object per terminal, pipe or file. Every function returns the bytes to write; it does no
// output itself.
class Screen {
 public:
  explicit Screen(bool terminal, bool colors = false) : terminal_(terminal), colors_(colors) {}

  // Shows a piece of a worker's stream. `source` is the number of that stream, `prefix` the text
  // before the line, with its colors.
  std::string show(int source, const std::string& prefix, const OutputPiece& piece);
  // A line of the launcher itself.
  std::string notice(std::string_view text);
  // A line of the launcher about an error.
  std::string error(std::string_view text);
  // A line of the launcher without the name "farandole" in front.
  std::string line(std::string_view text) { return complete_line("", text); }
  // Call it at the end: ends an open progress line.
  std::string close();

 private:
  struct Open {
    int source;
    std::string prefix;
    std::string text;
  };

  std::string complete_line(const std::string& prefix, std::string_view text);
  std::string progress(int source, const std::string& prefix, const std::string& text);

  bool terminal_;
  bool colors_;
  std::optional<Open> open_;
};

}  // namespace farandole
