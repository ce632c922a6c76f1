// LineSplitter: cuts what a worker writes into lines, and into the states of a progress line that
// the worker redraws with carriage returns.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace farandole {

// A longer line is cut, so that a worker that never ends its line cannot fill our memory.
inline constexpr std::size_t kLineBytesMax = 64 * 1024;

struct OutputPiece {
  std::string text;       // without the line's end
  bool finished = false;  // false: the state of a progress line, which the next piece replaces

  friend bool operator==(const OutputPiece&, const OutputPiece&) = default;
};

// One stream of one worker. Pure.
class LineSplitter {
 public:
  // What can be shown after these bytes.
  std::vector<OutputPiece> push(std::string_view bytes);
  // The stream has ended: the last line, if it had no end.
  std::vector<OutputPiece> finish();

 private:
  void take(char letter, std::vector<OutputPiece>& pieces);
  void end_line(std::vector<OutputPiece>& pieces);
  void show_progress(std::vector<OutputPiece>& pieces);
  void cut(std::vector<OutputPiece>& pieces);

  std::string text_;
  std::string shown_;           // the last state of the progress line that was given out
  bool returned_ = false;       // a carriage return came last; a line feed may make it "\r\n"
  bool progress_line_ = false;  // the current line was redrawn at least once
};

}  // namespace farandole
