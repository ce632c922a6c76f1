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
  piece_ = 0;
  copied_ = 0;
  position_ = 0;
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
  const auto needed = static_cast<std::size_t>(bytes_);
  if (needed > owned_bytes_) {
    owned_.reset();
    owned_bytes_ = 0;
    const std::size_t wanted = std::max(needed, std::min(std::bit_ceil(needed), bytes_max_));
    FARANDOLE_TRY_ASSIGN(owned_, heap_.allocate(wanted));
    owned_bytes_ = wanted;
  }
  memory_ = owned_.get();
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

bool FusionBuffer::copy_some(bool packs) {
  if (in_place_) return true;
  for (std::int64_t left = kChunkBytes; piece_ < pieces_.size() && left > 0;) {
    const Piece& piece = pieces_[piece_];
    const std::int64_t bytes = std::min(left, piece.bytes - copied_);
    if (packs)
      std::memcpy(memory_ + position_, piece.input + copied_, static_cast<std::size_t>(bytes));
    else
      std::memcpy(piece.output + copied_, memory_ + position_, static_cast<std::size_t>(bytes));
    left -= bytes;
    copied_ += bytes;
    position_ += bytes;
    if (copied_ < piece.bytes) continue;
    ++piece_;
    copied_ = 0;
  }
  if (piece_ < pieces_.size()) return false;
  piece_ = 0;
  position_ = 0;
  return true;
}

}  // namespace farandole
