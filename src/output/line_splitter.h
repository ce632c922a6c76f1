// LineSplitter: splits a worker's output into lines. If the worker redraws a progress line with
// carriage returns, each state of this line is a piece of its own.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace farandole {

// Longer lines are cut, so that a worker that never writes a line end cannot fill our memory.
inline constexpr std::size_t kLineBytesMax = 64 * 1024;

struct OutputPiece {
  std::string text;       // without the newline
  bool finished = false;  // false for a progress line, which the next piece replaces

  friend bool operator==(const OutputPiece&, const OutputPiece&) = default;
};

// Each stream of a worker has its own splitter. The splitter only works on bytes in memory.
class LineSplitter {
 public:
  explicit LineSplitter(std::size_t line_bytes_max = kLineBytesMax)
      : line_bytes_max_(line_bytes_max) {}

  // Returns the pieces that can be shown after these bytes.
  std::vector<OutputPiece> push(std::string_view bytes);
  // Call it at the end of the stream. Returns the last line if it had no newline.
  std::vector<OutputPiece> finish();

 private:
  void add_byte(char byte, std::vector<OutputPiece>& pieces);
  void end_line(std::vector<OutputPiece>& pieces);
  void show_progress(std::vector<OutputPiece>& pieces);
  void cut_line(std::vector<OutputPiece>& pieces);

  std::size_t line_bytes_max_;
  std::string text_;
  std::string shown_text_;  // the last state of the progress line that push() returned
  // True if the last byte was a carriage return. A line feed may then follow, which belongs to the
  // same line end.
  bool ended_with_carriage_return_ = false;
  bool is_progress_line_ = false;  // the current line was redrawn at least once
};

}  // namespace farandole
