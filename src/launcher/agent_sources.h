// The sources of events that wake the agent's loop. Each descriptor that the agent's poller watches
// has a tag. The tag says what the descriptor is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace farandole {

// The high half of a tag is a Source; its low half is an index.
enum class Source : std::uint64_t {
  kSignals,
  kForeground,
  kDriverLoss,
  kCaller,
  kReport,
  kStore,
  kWritable,
  kWorker,
  kStream,
  kStack,
  kNodes
};

constexpr std::uint64_t make_tag(Source source, std::uint64_t index = 0) {
  return static_cast<std::uint64_t>(source) << 32U | index;
}
constexpr Source source_of(std::uint64_t tag) { return static_cast<Source>(tag >> 32U); }
constexpr std::size_t index_of(std::uint64_t tag) { return tag & 0xFFFFFFFFU; }

}  // namespace farandole
