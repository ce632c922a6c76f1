#include "output/line_splitter.h"

#include <utility>

namespace farandole {
namespace {

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

}  // namespace

std::vector<OutputPiece> LineSplitter::push(std::string_view bytes) {
  std::vector<OutputPiece> pieces;
  for (const char byte : bytes) add_byte(byte, pieces);
  if (is_progress_line_ || ended_with_carriage_return_) show_progress(pieces);
  return pieces;
}

std::vector<OutputPiece> LineSplitter::finish() {
  std::vector<OutputPiece> pieces;
  if (!text_.empty()) end_line(pieces);
  return pieces;
}

void LineSplitter::add_byte(char byte, std::vector<OutputPiece>& pieces) {
  if (byte == '\n') return end_line(pieces);
  if (byte == '\r') {
    ended_with_carriage_return_ = true;
    return;
  }
  if (ended_with_carriage_return_) {
    show_progress(pieces);
    text_.clear();
    ended_with_carriage_return_ = false;
    is_progress_line_ = true;
  }
  text_.push_back(byte);
  if (text_.size() >= line_bytes_max_) cut_line(pieces);
}

void LineSplitter::end_line(std::vector<OutputPiece>& pieces) {
  pieces.push_back({std::exchange(text_, {}), true});
  shown_text_.clear();
  ended_with_carriage_return_ = false;
  is_progress_line_ = false;
}

void LineSplitter::show_progress(std::vector<OutputPiece>& pieces) {
  if (text_.empty() || text_ == shown_text_) return;
  pieces.push_back({text_, false});
  shown_text_ = text_;
}

// Cuts a line at the limit. If the limit is inside a UTF-8 character, cuts before this character.
void LineSplitter::cut_line(std::vector<OutputPiece>& pieces) {
  std::size_t end = text_.size();
  while (end > text_.size() - 4 && continues_character(text_[end - 1])) --end;
  if (static_cast<unsigned char>(text_[end - 1]) >= 0xC0U) --end;
  std::string next_line = text_.substr(end);
  text_.resize(end);
  end_line(pieces);
  text_ = std::move(next_line);
}

}  // namespace farandole
