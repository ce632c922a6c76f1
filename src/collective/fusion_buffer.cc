#include "collective/fusion_buffer.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/try.h"
#include "collective/group.h"

namespace farandole {

void FusionBuffer::clear() {
  pieces_.clear();
  bytes_ = 0;
  memory_ = nullptr;
  piece_index_ = 0;
  copied_bytes_ = 0;
  memory_offset_ = 0;
}

void FusionBuffer::add(const Piece& piece) {
  if (piece.bytes == 0) return;
  pieces_.push_back(piece);
  bytes_ += piece.bytes;
}

Status FusionBuffer::choose_memory() {
  in_place_ = are_contiguous();
  if (in_place_) {
    memory_ = pieces_.empty() ? nullptr : pieces_.front().output;
    return {};
  }
  const auto bytes_needed = static_cast<std::size_t>(bytes_);
  if (bytes_needed > buffer_bytes_) {
    buffer_.reset();
    buffer_bytes_ = 0;
    const std::size_t bytes_wanted =
        std::max(bytes_needed, std::min(std::bit_ceil(bytes_needed), bytes_max_));
    FARANDOLE_TRY_ASSIGN(buffer_, heap_.allocate(bytes_wanted));
    buffer_bytes_ = bytes_wanted;
  }
  memory_ = buffer_.get();
  return {};
}

bool FusionBuffer::are_contiguous() const {
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    if (piece.input != piece.output) return false;
    if (i > 0 && pieces_[i - 1].output + pieces_[i - 1].bytes != piece.output) return false;
  }
  return true;
}

bool FusionBuffer::copy_chunk(bool packs) {
  if (in_place_) return true;
  for (std::int64_t bytes_left = kBytesPerAdvance;
       piece_index_ < pieces_.size() && bytes_left > 0;) {
    const Piece& piece = pieces_[piece_index_];
    const std::int64_t bytes = std::min(bytes_left, piece.bytes - copied_bytes_);
    if (packs)
      std::memcpy(memory_ + memory_offset_, piece.input + copied_bytes_,
                  static_cast<std::size_t>(bytes));
    else
      std::memcpy(piece.output + copied_bytes_, memory_ + memory_offset_,
                  static_cast<std::size_t>(bytes));
    bytes_left -= bytes;
    copied_bytes_ += bytes;
    memory_offset_ += bytes;
    if (copied_bytes_ < piece.bytes) continue;
    ++piece_index_;
    copied_bytes_ = 0;
  }
  if (piece_index_ < pieces_.size()) return false;
  piece_index_ = 0;
  memory_offset_ = 0;
  return true;
}

}  // namespace farandole
