#include "launcher/screen.h"

#include <array>
#include <utility>

namespace farandole {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";
constexpr std::string_view kClearRest = "\x1b[K";
constexpr std::string_view kPlain = "\x1b[0m";
constexpr std::array<std::string_view, 6> kColors{"\x1b[36m", "\x1b[33m", "\x1b[32m",
                                                  "\x1b[35m", "\x1b[34m", "\x1b[31m"};

// A color that a worker forgot to switch off must not reach the next line.
std::string_view color_end(bool terminal, std::string_view text) {
  return terminal && text.find('\x1b') != std::string_view::npos ? kPlain : std::string_view();
}

}  // namespace

std::string Screen::prefix(int rank) const {
  const std::string plain = "[" + std::to_string(rank) + "]";
  if (!colors_) return plain + " ";
  const auto color = kColors[static_cast<std::size_t>(rank) % kColors.size()];
  return std::string(color) + plain + std::string(kPlain) + " ";
}

std::string Screen::show(int source, int rank, const OutputPiece& piece) {
  if (!piece.finished) return progress(source, prefix(rank), piece.text);
  const bool ours = open_ && open_->source == source;
  if (!ours) return complete_line(prefix(rank), piece.text);
  const Open last = *std::exchange(open_, std::nullopt);
  if (last.text == piece.text) return "\n";
  std::string bytes = terminal_ ? std::string(kClearLine) : "\r";
  return bytes + complete_line(last.prefix, piece.text);
}

std::string Screen::complete_line(const std::string& prefix, std::string_view text) {
  std::string line = prefix + std::string(text);
  line += color_end(terminal_, text);
  line += '\n';
  if (!open_) return line;
  if (!terminal_) {
    open_.reset();
    return "\n" + line;
  }
  return std::string(kClearLine) + line + open_->prefix + open_->text +
         std::string(color_end(terminal_, open_->text));
}

std::string Screen::progress(int source, std::string prefix, const std::string& text) {
  std::string bytes;
  if (open_) {
    const bool ours = open_->source == source;
    bytes = ours || terminal_ ? "\r" : "\n";
  }
  bytes += prefix + text;
  bytes += color_end(terminal_, text);
  if (terminal_) bytes += kClearRest;
  open_ = Open{source, std::move(prefix), text};
  return bytes;
}

std::string Screen::notice(std::string_view text) { return complete_line("farandole: ", text); }

std::string Screen::close() { return std::exchange(open_, std::nullopt) ? "\n" : ""; }

}  // namespace farandole
