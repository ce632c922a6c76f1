#include "hosts/allgather.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

// The group's scratch lists hold, for each member of the whole group, the number of its rows and
// their offset in the output.

namespace farandole {

NoteSizes HostsAllgather::note_sizes(const HostParts& parts) {
  NoteSizes sizes;
  for (int host = 0; host < parts.hosts(); ++host)
    sizes.payload_bytes.push_back(parts.members_on(host) *
                                  static_cast<std::int64_t>(sizeof(std::int64_t)));
  return sizes;
}

HostsAllgather::HostsAllgather(Group& group, const StepIdentity& identity,
                               Allgather::Options options)
    : scratch_(&group.scratch),
      options_(std::move(options)),
      notes_(group, identity, note_sizes(*group.parts)),
      copies_(notes_, 1) {}

std::optional<NoteHeader> HostsAllgather::write_note(std::span<std::byte> payload) const {
  for (int member = 0; member < parts().members_on(parts().host); ++member) {
    const std::int64_t rows = notes_.entry_barrier().declared_count(member);
    std::memcpy(payload.data() + static_cast<std::size_t>(member) * sizeof(rows), &rows,
                sizeof(rows));
  }
  return NoteHeader{};
}

// Returns false if a number of rows is negative or a sum overflows. All members return the same
// value.
bool HostsAllgather::read_rows() {
  scratch_->counts.assign(static_cast<std::size_t>(parts().group_members()), 0);
  for (int host = 0; host < parts().hosts(); ++host) {
    const std::byte* from = notes_.payload(host);
    for (const int member : parts().members[static_cast<std::size_t>(host)]) {
      std::memcpy(&scratch_->counts[static_cast<std::size_t>(member)], from, sizeof(std::int64_t));
      from += sizeof(std::int64_t);
    }
  }
  return compute_row_offsets(*scratch_, options_.row_bytes);
}

std::optional<std::int64_t> HostsAllgather::on_all_arrived() {
  if (!read_rows()) return std::nullopt;
  std::byte* const output = options_.allocate(scratch_->counts);
  return copies_.start(streams(), options_.input, output);
}

HostCopies::Streams HostsAllgather::streams() const {
  HostCopies::Streams streams = {.outgoing = std::vector<HostStream>(1),
                                 .incoming = std::vector<HostStream>(parts().members.size())};
  for (int host = 0; host < parts().hosts(); ++host) {
    HostStream& stream = host == parts().host ? streams.outgoing[0]
                                              : streams.incoming[static_cast<std::size_t>(host)];
    int index = 0;
    for (const int member : parts().members[static_cast<std::size_t>(host)]) {
      const auto position = static_cast<std::size_t>(member);
      stream.add({.sender = index++,
                  .bytes = scratch_->counts[position] * options_.row_bytes,
                  .output_offset = scratch_->offsets[position]});
    }
    streams.longest_bytes = std::max(streams.longest_bytes, stream.bytes());
  }
  return streams;
}

}  // namespace farandole
