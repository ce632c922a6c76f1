// Screen: merges the output of all workers so that no line is cut by another. At most one progress
// line is open at a time. If another line is written, a terminal shows it above the redrawn
// progress line; in a file or pipe, the progress line is ended first.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "output/line_splitter.h"

namespace farandole {

// One object per terminal, pipe or file. Every function returns the bytes to write.
class Screen {
 public:
  explicit Screen(bool is_terminal, bool has_colors = false)
      : is_terminal_(is_terminal), has_colors_(has_colors) {}

  // Shows a piece of stream number `source`, with `prefix` before the line.
  std::string show(int source, const std::string& prefix, const OutputPiece& piece);
  // Shows a line of the launcher itself.
  std::string show_notice(std::string_view text);
  // Shows a line of the launcher about an error.
  std::string show_error(std::string_view text);
  // Shows a line of the launcher without the name "farandole" in front.
  std::string show_line(std::string_view text) { return complete_line("", text); }
  // Ends an open progress line. Call it at the end of the output.
  std::string end_progress_line();

 private:
  struct OpenLine {
    int source;
    std::string prefix;
    std::string text;
  };

  std::string complete_line(const std::string& prefix, std::string_view text);
  std::string show_progress(int source, const std::string& prefix, const std::string& text);

  bool is_terminal_;
  bool has_colors_;
  std::optional<OpenLine> open_line_;
};

}  // namespace farandole
