#include "output/screen.h"

#include <utility>

#include "output/colors.h"

namespace farandole {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";
constexpr std::string_view kClearToLineEnd = "\x1b[K";
constexpr std::string_view kNoticePrefix = "farandole: ";

// Returns the escape sequence that ends colors, if the text has escape sequences. So a color that a
// worker did not end does not affect the next line.
std::string_view color_end(bool is_terminal, std::string_view text) {
  return is_terminal && text.find('\x1b') != std::string_view::npos ? kResetColor
                                                                    : std::string_view();
}

}  // namespace

std::string Screen::show(int source, const std::string& prefix, const OutputPiece& piece) {
  if (!piece.finished) return show_progress(source, prefix, piece.text);
  const bool is_same_source = open_line_ && open_line_->source == source;
  if (!is_same_source) return complete_line(prefix, piece.text);
  const OpenLine ended_line = *std::exchange(open_line_, std::nullopt);
  if (ended_line.text == piece.text) return "\n";
  std::string bytes = is_terminal_ ? std::string(kClearLine) : "\r";
  return bytes + complete_line(ended_line.prefix, piece.text);
}

std::string Screen::complete_line(const std::string& prefix, std::string_view text) {
  std::string line = prefix + std::string(text);
  line += color_end(is_terminal_, text);
  line += '\n';
  if (!open_line_) return line;
  if (!is_terminal_) {
    open_line_.reset();
    return "\n" + line;
  }
  return std::string(kClearLine) + line + open_line_->prefix + open_line_->text +
         std::string(color_end(is_terminal_, open_line_->text));
}

std::string Screen::show_progress(int source, const std::string& prefix, const std::string& text) {
  std::string bytes;
  if (open_line_) {
    const bool is_same_source = open_line_->source == source;
    bytes.push_back(is_same_source || is_terminal_ ? '\r' : '\n');
  }
  bytes += prefix + text;
  bytes += color_end(is_terminal_, text);
  if (is_terminal_) bytes += kClearToLineEnd;
  open_line_ = OpenLine{source, prefix, text};
  return bytes;
}

std::string Screen::show_notice(std::string_view text) {
  return complete_line(
      has_colors_ ? in_color(kNoticePrefix, Color::kBold) : std::string(kNoticePrefix), text);
}

std::string Screen::show_error(std::string_view text) {
  const std::string line = std::string(kNoticePrefix).append(text);
  return complete_line(has_colors_ ? in_color(line, Color::kRed) : line, "");
}

std::string Screen::end_progress_line() {
  return std::exchange(open_line_, std::nullopt) ? "\n" : "";
}

}  // namespace farandole
