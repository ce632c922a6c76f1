// Screen: puts the output of all workers in one order without cutting a line by another. At most
// one progress line is open at a time; on a terminal it is drawn again below the lines that come
// meanwhile, elsewhere it is ended first.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/line_splitter.h"

namespace farandole {

// One per terminal, pipe or file. Pure: every call returns the bytes to write.
class Screen {
 public:
  explicit Screen(bool terminal, bool colors = false) : terminal_(terminal), colors_(colors) {}

  // A piece of stream `source`, which is a number for each stream of each worker. `prefix`: what
  // stands before it, colors included.
  std::string show(int source, const std::string& prefix, const OutputPiece& piece);
  // A line of the launcher's own.
  std::string notice(std::string_view text);
  // Likewise, for what went wrong.
  std::string error(std::string_view text);
  // The same without our name in front.
  std::string line(std::string_view text) { return complete_line("", text); }
  // At the very end: nothing may follow an open progress line.
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
