#include "hosts/broadcast.h"

#include <cstring>
#include <vector>

namespace farandole {
namespace {

NoteSizes note_sizes(const HostParts& hosts, int root_host, std::int64_t bytes) {
  NoteSizes sizes = {.payloads = std::vector<std::int64_t>(hosts.members.size(), 0)};
  if (bytes <= note_data_bytes_max(hosts.hosts()))
    sizes.payloads[static_cast<std::size_t>(root_host)] = bytes;
  return sizes;
}

}  // namespace

HostsBroadcast::HostsBroadcast(const Group& group, const StepIdentity& identity,
                               const Broadcast::Options& options)
    : options_(options),
      root_host_(group.parts->host_of(options.root)),
      root_(group.parts->index_of(options.root)),
      notes_(group, identity, note_sizes(*group.parts, root_host_, options.bytes)),
      copies_(notes_, 1) {}

bool HostsBroadcast::is_root() const {
  return root_host_ == hosts().host && root_ == notes_.entry_barrier().group().member;
}

std::int64_t HostsBroadcast::show() {
  if (is_root() && is_small() && options_.bytes > 0)
    std::memcpy(notes_.own_shown_data(options_.bytes), options_.input,
                static_cast<std::size_t>(options_.bytes));
  return options_.bytes;
}

std::optional<NoteHeader> HostsBroadcast::write_note(std::span<std::byte> payload) const {
  if (!notes_.entry_barrier().declared_counts_equal()) return std::nullopt;
  if (!payload.empty())
    std::memcpy(payload.data(), notes_.shown_data(root_, options_.bytes), payload.size());
  return NoteHeader{.declared_count = options_.bytes};
}

std::optional<std::int64_t> HostsBroadcast::all_arrived() {
  const bool is_complete = is_root() && options_.input == options_.output;
  if (!is_small()) return copies_.start(streams(), options_.input, options_.output);
  if (!is_complete && options_.bytes > 0)
    std::memcpy(options_.output, notes_.payload(root_host_),
                static_cast<std::size_t>(options_.bytes));
  return 0;
}

HostCopies::Streams HostsBroadcast::streams() const {
  HostCopies::Streams streams = {.outgoing = std::vector<HostStream>(1),
                                 .incoming = std::vector<HostStream>(hosts().members.size()),
                                 .longest = options_.bytes};
  HostStream& stream = root_host_ == hosts().host
                           ? streams.outgoing[0]
                           : streams.incoming[static_cast<std::size_t>(root_host_)];
  stream.add({.from = root_, .bytes = options_.bytes});
  return streams;
}

}  // namespace farandole
