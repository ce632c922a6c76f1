#include "hosts/broadcast.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace farandole {
namespace {

// A slice is forwarded in pieces of at least this size. Only the last piece may be smaller.
constexpr std::int64_t kForwardBytesMin = 64 * 1024;

NoteSizes note_sizes(const HostParts& parts, int root_host, std::int64_t bytes) {
  NoteSizes sizes = {.payload_bytes = std::vector<std::int64_t>(parts.members.size(), 0)};
  if (bytes <= note_data_bytes_max(parts.hosts()))
    sizes.payload_bytes[static_cast<std::size_t>(root_host)] = bytes;
  return sizes;
}

}  // namespace

HostsBroadcast::HostsBroadcast(const Group& group, const StepIdentity& identity,
                               const Broadcast::Options& options)
    : options_(options),
      root_host_(group.parts->host_of(options.root)),
      root_index_(group.parts->index_of(options.root)),
      notes_(group, identity, note_sizes(*group.parts, root_host_, options.bytes)),
      layout_(notes_, chunks_in_window(*group.parts), 0),
      lane_(parts()) {}

std::int64_t HostsBroadcast::publish_input() {
  if (is_root() && fits_into_notes() && options_.bytes > 0)
    std::memcpy(notes_.own_published_data(options_.bytes), options_.input,
                static_cast<std::size_t>(options_.bytes));
  return options_.bytes;
}

std::optional<NoteHeader> HostsBroadcast::write_note(std::span<std::byte> payload) const {
  if (!notes_.entry_barrier().declared_counts_equal()) return std::nullopt;
  if (!payload.empty())
    std::memcpy(payload.data(), notes_.published_data(root_index_, options_.bytes), payload.size());
  return NoteHeader{.declared_count = options_.bytes};
}

std::optional<std::int64_t> HostsBroadcast::on_all_arrived() {
  if (fits_into_notes()) {
    copy_out({0, options_.bytes}, notes_.payload(root_host_));
    return 0;
  }
  if (lane_.has_lane()) lane_.begin(notes_.entry_barrier().identity());
  return layout_.windows_for(part_bytes());
}

std::int64_t HostsBroadcast::part_bytes() const {
  return round_up(rounds_for(options_.bytes, parts().hosts() - 1), kPieceAlignment);
}

StreamRange HostsBroadcast::chunk(int host, std::int64_t window) const {
  const std::int64_t part_begin = part_index(host) * part_bytes();
  const std::int64_t part_end = std::min(part_begin + part_bytes(), options_.bytes);
  const std::int64_t begin = std::min(part_begin + window * layout_.chunk_bytes(), part_end);
  return {begin, std::min(begin + layout_.chunk_bytes(), part_end)};
}

// The root reads its own data directly. If the root's output is its input, nothing is copied.
void HostsBroadcast::copy_out(StreamRange range, const std::byte* from) const {
  if (is_root()) from = options_.input + range.begin;
  std::byte* const to = options_.output + range.begin;
  if (range.bytes() > 0 && from != to)
    std::memcpy(to, from, static_cast<std::size_t>(range.bytes()));
}

void HostsBroadcast::stage(std::int64_t window) const {
  if (!is_root() || is_alone()) return;
  for_each_part([&](int host) {
    const StreamRange range = chunk(host, window);
    if (range.bytes() > 0)
      std::memcpy(notes_.entry_barrier().own_staging() + staging_offset(host, window, range.begin),
                  options_.input + range.begin, static_cast<std::size_t>(range.bytes()));
  });
}

void HostsBroadcast::begin(std::int64_t window) {
  windows_begun_ = window + 1;
  if (is_on_root_host()) copy_from_own_host(window);
  if (!lane_.has_lane()) return;
  for_each_part([&](int host) {
    const StreamRange range = slice(host, window);
    if (is_on_root_host()) return lane_.send(host, source(range, host, window), range.bytes());
    lane_.receive(host == parts().host ? root_host_ : host, target(range, host, window),
                  range.bytes());
  });
  complete_mark(window) = lane_.mark();
  arrived_mark(window) = lane_.mark();
  for (int host = 0; host < parts().hosts(); ++host)
    if (host != root_host_) arrived_mark(window).received[static_cast<std::size_t>(host)] = 0;
}

// On the root's host: returns the memory from which we send this range of the part of
// `host_of_part`.
const std::byte* HostsBroadcast::source(StreamRange range, int host_of_part,
                                        std::int64_t window) const {
  if (is_alone()) return options_.input + range.begin;
  return staging(root_index_) + staging_offset(host_of_part, window, range.begin);
}

// On another host: returns the memory into which we receive this range of the part. We also forward
// our own part from this memory.
std::byte* HostsBroadcast::target(StreamRange range, int host_of_part, std::int64_t window) const {
  if (is_alone()) return options_.output + range.begin;
  return notes_.entry_barrier().own_staging() + staging_offset(host_of_part, window, range.begin);
}

void HostsBroadcast::copy_from_own_host(std::int64_t window) const {
  for_each_part([&](int host) {
    const StreamRange range = chunk(host, window);
    copy_out(range, staging(root_index_) + staging_offset(host, window, range.begin));
  });
}

bool HostsBroadcast::drive() {
  if (is_on_root_host() || !lane_.has_lane()) return false;
  if (windows_forwarded_ == windows_begun_) return false;
  const StreamRange own_slice = slice(parts().host, windows_forwarded_);
  const std::int64_t missing_bytes =
      lane_.bytes_missing(arrived_mark(windows_forwarded_), root_host_);
  const StreamRange ready_range = {own_slice.begin + forwarded_bytes_,
                                   std::max(own_slice.begin, own_slice.end - missing_bytes)};
  if (missing_bytes > 0 && ready_range.bytes() < kForwardBytesMin) return false;
  for_each_part([&](int host) {
    if (host != parts().host)
      lane_.send(host, target(ready_range, parts().host, windows_forwarded_), ready_range.bytes());
  });
  forwarded_bytes_ += ready_range.bytes();
  if (missing_bytes > 0) return true;
  complete_mark(windows_forwarded_).sent = lane_.mark().sent;
  ++windows_forwarded_;
  forwarded_bytes_ = 0;
  return true;
}

bool HostsBroadcast::is_complete(std::int64_t window) {
  if (!lane_.has_lane()) return true;
  return (is_on_root_host() || windows_forwarded_ > window) &&
         lane_.has_sent(complete_mark(window)) && lane_.has_received(complete_mark(window));
}

void HostsBroadcast::fetch(std::int64_t window) const {
  if (is_on_root_host() || is_alone()) return;
  for_each_part([&](int host) {
    for (int lane = 0; lane < parts().lanes(); ++lane) {
      const StreamRange range = layout_.slice(chunk(host, window), lane);
      copy_out(range, staging(lane) + staging_offset(host, window, range.begin));
    }
  });
}

}  // namespace farandole
