#include "hosts/host_sum.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace farandole {

void reduce_inputs(const Reduction& reduction, const StepScratch& scratch, std::byte* output,
                   std::int64_t bytes) {
  if (bytes == 0) return;
  const std::array outputs = {output};
  reduce(reduction, scratch.inputs, outputs,
         bytes / static_cast<std::int64_t>(row_of(reduction.dtype).bytes));
}

NoteSizes HostSum::note_sizes(const HostParts& parts, std::int64_t bytes) {
  return {.payload_bytes = std::vector<std::int64_t>(parts.members.size(),
                                                     fits_into_notes(parts, bytes) ? bytes : 0)};
}

std::int64_t HostSum::publish_input() const {
  if (fits_into_notes(notes_->parts(), tensor_->bytes()) && !tensor_->joined && tensor_->count > 0)
    std::memcpy(notes_->own_published_data(tensor_->bytes()), tensor_->input,
                static_cast<std::size_t>(tensor_->bytes()));
  return declared_count_of(*tensor_);
}

std::optional<NoteHeader> HostSum::write_note(std::span<std::byte> payload) const {
  const std::int64_t bytes = tensor_->bytes();
  NoteHeader header = {.declared_count = bytes};
  scratch_->inputs.clear();
  for (int member = 0; member < entry_barrier().group().members(); ++member) {
    const std::int64_t declared_count = entry_barrier().declared_count(member);
    if (declared_count != bytes && declared_count != kJoinedDeclaredCount + bytes)
      return std::nullopt;
    if (has_joined(entry_barrier(), member)) continue;
    ++header.present_count;
    scratch_->inputs.push_back(notes_->published_data(member, bytes));
  }
  if (header.present_count > 0)
    reduce_inputs(reduction_, *scratch_, payload.data(), static_cast<std::int64_t>(payload.size()));
  else
    std::ranges::fill(payload, std::byte{0});
  return header;
}

void HostSum::stage(const HostStream& stream, StreamRange chunk, StreamRange own_slice,
                    std::int64_t offset) const {
  if (tensor_->joined) return;
  std::byte* const to = entry_barrier().own_staging() + offset;
  const auto copy = [&](const Block& block, StreamRange range) {
    std::memcpy(to + (range.begin - chunk.begin), input_at(block, range),
                static_cast<std::size_t>(range.bytes()));
  };
  stream.visit({chunk.begin, own_slice.begin}, copy);
  stream.visit({own_slice.end, chunk.end}, copy);
}

void HostSum::reduce_slice(const HostStream& stream, StreamRange slice, std::int64_t offset) const {
  stream.visit(slice, [&](const Block& block, StreamRange range) {
    const std::int64_t range_offset = offset + (range.begin - slice.begin);
    scratch_->inputs.clear();
    for (int member = 0; member < entry_barrier().group().members(); ++member)
      if (!has_joined(entry_barrier(), member))
        scratch_->inputs.push_back(member == entry_barrier().group().member
                                       ? input_at(block, range)
                                       : entry_barrier().staging(member) + range_offset);
    reduce_inputs(reduction_, *scratch_, entry_barrier().own_staging() + range_offset,
                  range.bytes());
  });
}

}  // namespace farandole
