#include "hosts/streams.h"

#include "base/check.h"

namespace farandole {

WindowLayout::WindowLayout(const HostNotes& notes, int chunks, int slices)
    : begin_offset_(notes.end()),
      half_bytes_(half_bytes_after(begin_offset_)),
      lanes_(notes.parts().lanes()),
      chunk_count_(chunks),
      chunk_bytes_(chunk_bytes_for(half_bytes_, notes.parts(), chunks, slices)),
      slice_bytes_(round_up(rounds_for(chunk_bytes_, lanes_), kPieceAlignment)) {
  CHECK(chunk_bytes_ > 0, "supports() must be ok");
  CHECK(chunks * chunk_bytes_ + slices * slice_bytes_ <= half_bytes_, "a window fits into a half");
}

// A slice has at most chunk / lanes + kPieceAlignment bytes. If the chunks and slices do not fit
// into half of the staging memory, returns zero or a negative number.
std::int64_t WindowLayout::chunk_bytes_for(std::int64_t half_bytes, const HostParts& parts,
                                           std::int64_t chunks, std::int64_t slices) {
  const std::int64_t lanes = parts.lanes();
  const std::int64_t chunk_bytes_max =
      lanes == 1 || slices == 0
          ? kChunkBytesMax
          : std::min(kChunkBytesMax,
                     lanes * std::max(kLaneBytesMax / (parts.hosts() - 1), kSliceBytesMin));
  const std::int64_t bytes_for_data = half_bytes - slices * kPieceAlignment;
  const std::int64_t fitting_bytes = bytes_for_data * lanes / (chunks * lanes + slices);
  return std::min(chunk_bytes_max, fitting_bytes) / kPieceAlignment * kPieceAlignment;
}

LaneStreams::LaneStreams(const HostParts& parts) : lane_(parts.lane) {
  queued_mark_.sent.assign(parts.members.size(), 0);
  queued_mark_.received.assign(parts.members.size(), 0);
}

void LaneStreams::send(int host, const std::byte* from, std::int64_t bytes) {
  if (bytes == 0) return;
  lane_->send(host, {from, static_cast<std::size_t>(bytes)});
  queued_mark_.sent[static_cast<std::size_t>(host)] += static_cast<std::uint64_t>(bytes);
}

void LaneStreams::receive(int host, std::byte* into, std::int64_t bytes) {
  if (bytes == 0) return;
  lane_->receive(host, {into, static_cast<std::size_t>(bytes)});
  queued_mark_.received[static_cast<std::size_t>(host)] += static_cast<std::uint64_t>(bytes);
}

// A lane has no stream to its own host, so the mark of that host is 0.
bool LaneStreams::has_sent(const Mark& mark) const {
  for (std::size_t host = 0; host < mark.sent.size(); ++host)
    if (mark.sent[host] > 0 && lane_->bytes_sent(static_cast<int>(host)) < mark.sent[host])
      return false;
  return true;
}

std::int64_t LaneStreams::bytes_missing(const Mark& mark, int host) const {
  const std::uint64_t expected_bytes = mark.received[static_cast<std::size_t>(host)];
  return static_cast<std::int64_t>(expected_bytes -
                                   std::min(expected_bytes, lane_->bytes_received(host)));
}

bool LaneStreams::has_received(const Mark& mark) const {
  for (std::size_t host = 0; host < mark.received.size(); ++host)
    if (mark.received[host] > 0 &&
        lane_->bytes_received(static_cast<int>(host)) < mark.received[host])
      return false;
  return true;
}

}  // namespace farandole
