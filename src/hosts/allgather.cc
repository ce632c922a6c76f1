#include "hosts/allgather.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

// The group's scratch lists hold, for each member of the whole group, the number of its rows and
// their offset in the output.

namespace farandole {

NoteSizes HostsAllgather::note_sizes(const HostParts& hosts) {
  NoteSizes sizes;
  for (int host = 0; host < hosts.hosts(); ++host)
    sizes.payloads.push_back(hosts.members_on(host) *
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
  for (int member = 0; member < hosts().members_on(hosts().host); ++member) {
    const std::int64_t rows = notes_.entry_barrier().declared_count(member);
    std::memcpy(payload.data() + static_cast<std::size_t>(member) * sizeof(rows), &rows,
                sizeof(rows));
  }
  return NoteHeader{};
}

// Returns false if a number of rows is negative or a sum overflows. The result is the same on all
// members.
bool HostsAllgather::read_rows() {
  scratch_->counts.assign(static_cast<std::size_t>(hosts().group_members()), 0);
  for (int host = 0; host < hosts().hosts(); ++host) {
    const std::byte* from = notes_.payload(host);
    for (const int member : hosts().members[static_cast<std::size_t>(host)]) {
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
                                 .incoming = std::vector<HostStream>(hosts().members.size())};
  for (int host = 0; host < hosts().hosts(); ++host) {
    HostStream& stream = host == hosts().host ? streams.outgoing[0]
                                              : streams.incoming[static_cast<std::size_t>(host)];
    int index = 0;
    for (const int member : hosts().members[static_cast<std::size_t>(host)]) {
      const auto position = static_cast<std::size_t>(member);
      stream.add({.from = index++,
                  .bytes = scratch_->counts[position] * options_.row_bytes,
                  .output_offset = scratch_->offsets[position]});
    }
    streams.longest = std::max(streams.longest, stream.bytes());
  }
  return streams;
}

}  // namespace farandole
