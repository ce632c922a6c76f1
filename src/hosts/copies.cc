#include "hosts/copies.h"

#include <cstring>
#include <utility>

namespace farandole {

bool compute_row_offsets(StepScratch& scratch, std::int64_t row_bytes) {
  scratch.offsets.assign(scratch.counts.size(), 0);
  std::int64_t total = 0;
  for (std::size_t member = 0; member < scratch.counts.size(); ++member) {
    std::int64_t bytes = 0;
    scratch.offsets[member] = total;
    if (scratch.counts[member] < 0 ||
        __builtin_mul_overflow(scratch.counts[member], row_bytes, &bytes) ||
        __builtin_add_overflow(total, bytes, &total))
      return false;
  }
  return true;
}

std::int64_t HostCopies::start(Streams streams, const std::byte* input, std::byte* output) {
  streams_ = std::move(streams);
  input_ = input;
  output_ = output;
  const std::int64_t window_count = streams_.window_count > 0
                                        ? streams_.window_count
                                        : layout_.windows_for(streams_.longest_bytes);
  if (window_count > 0 && lane_.has_lane()) lane_.begin(notes_->entry_barrier().identity());
  return window_count;
}

void HostCopies::stage(std::int64_t window) const {
  if (skips_staging()) return;
  for (int index = 0; index < static_cast<int>(streams_.outgoing.size()); ++index) {
    const StreamRange chunk = layout_.chunk(outgoing(index), window);
    std::byte* const to =
        notes_->entry_barrier().own_staging() + layout_.chunk_offset(window, index);
    outgoing(index).visit(chunk, [&](const Block& block, StreamRange part) {
      if (block.sender == group().member)
        std::memcpy(to + (part.begin - chunk.begin), input_at(block, part),
                    static_cast<std::size_t>(part.bytes()));
    });
  }
}

void HostCopies::begin(std::int64_t window) {
  copy_from_own_host(window);
  if (!lane_.has_lane()) return;
  for (int host = 0; host < parts().hosts(); ++host) {
    if (host == parts().host) continue;
    send(window, host);
    receive(window, host);
  }
  complete_marks_[static_cast<std::size_t>(window % 2)] = lane_.mark();
}

// Copies to our output the data that members of our host contribute for us. Our own data comes
// directly from our input, and is not copied if the output is the input.
void HostCopies::copy_from_own_host(std::int64_t window) const {
  if (output_ == nullptr) return;
  const int index = outgoing_index(parts().host);
  const StreamRange chunk = layout_.chunk(outgoing(index), window);
  const std::int64_t offset = layout_.chunk_offset(window, index);
  outgoing(index).visit(chunk, [&](const Block& block, StreamRange part) {
    if (!block.is_for(group().member)) return;
    std::byte* const to = output_at(block, part);
    const std::byte* const from = block.sender == group().member
                                      ? input_at(block, part)
                                      : staging(block.sender) + offset + (part.begin - chunk.begin);
    if (from != to) std::memcpy(to, from, static_cast<std::size_t>(part.bytes()));
  });
}

void HostCopies::send(std::int64_t window, int host) {
  const int index = outgoing_index(host);
  const StreamRange chunk = layout_.chunk(outgoing(index), window);
  const std::int64_t offset = layout_.chunk_offset(window, index);
  outgoing(index).visit(
      layout_.slice(chunk, group().member), [&](const Block& block, StreamRange part) {
        const std::byte* const from =
            skips_staging() ? input_at(block, part)
                            : staging(block.sender) + offset + (part.begin - chunk.begin);
        lane_.send(host, from, part.bytes());
      });
}

void HostCopies::receive(std::int64_t window, int host) {
  const StreamRange slice = layout_.slice(incoming(host), window, group().member);
  if (skips_staging()) {
    incoming(host).visit(slice, [&](const Block& block, StreamRange part) {
      lane_.receive(host, output_at(block, part), part.bytes());
    });
    return;
  }
  lane_.receive(host, notes_->entry_barrier().own_staging() + layout_.slice_offset(window, host),
                slice.bytes());
}

bool HostCopies::is_complete(std::int64_t window) const {
  const LaneStreams::Mark& complete = complete_marks_[static_cast<std::size_t>(window % 2)];
  return !lane_.has_lane() || (lane_.has_sent(complete) && lane_.has_received(complete));
}

void HostCopies::fetch(std::int64_t window) const {
  if (output_ == nullptr || skips_staging()) return;
  for (int host = 0; host < parts().hosts(); ++host) {
    if (host == parts().host) continue;
    for (int lane = 0; lane < parts().lanes(); ++lane) {
      const StreamRange slice = layout_.slice(incoming(host), window, lane);
      const std::byte* const from = staging(lane) + layout_.slice_offset(window, host);
      incoming(host).visit(slice, [&](const Block& block, StreamRange part) {
        if (block.is_for(group().member))
          std::memcpy(output_at(block, part), from + (part.begin - slice.begin),
                      static_cast<std::size_t>(part.bytes()));
      });
    }
  }
}

}  // namespace farandole
