// Pieces of output for the tests of this room: a whole line, and a piece of a progress bar.
#pragma once

#include <string>
#include <utility>

#include "output/line_splitter.h"

namespace farandole {

inline OutputPiece line(std::string text) { return {std::move(text), true}; }
inline OutputPiece progress(std::string text) { return {std::move(text), false}; }

}  // namespace farandole
