#include "hosts/alltoall.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

// The payload of a note is the length of the longest stream, followed by the splits of each member
// of the host. The group's scratch lists hold, for each member of the group, how many rows the
// member sends to us and where these rows begin in the output.

namespace farandole {
namespace {

constexpr std::int64_t kNumberBytes = sizeof(std::int64_t);

std::int64_t number_at(const std::byte* numbers, std::int64_t index) {
  std::int64_t number = 0;
  std::memcpy(&number, numbers + index * kNumberBytes, sizeof(number));
  return number;
}

}  // namespace

// All hosts keep the same number of bytes of each note: as many as the host with the most members
// needs. So the windows have the same size on all hosts.
NoteSizes HostsAlltoall::note_sizes(const HostParts& parts) {
  std::int64_t members_max = 0;
  for (int host = 0; host < parts.hosts(); ++host)
    members_max = std::max<std::int64_t>(members_max, parts.members_on(host));
  NoteSizes sizes;
  for (int host = 0; host < parts.hosts(); ++host) {
    const std::int64_t senders = parts.members_on(host);
    sizes.payload_bytes.push_back((1 + senders * parts.group_members()) * kNumberBytes);
    sizes.kept_bytes.push_back((1 + senders * members_max) * kNumberBytes);
  }
  return sizes;
}

HostsAlltoall::HostsAlltoall(Group& group, const StepIdentity& identity, Alltoall::Options options)
    : scratch_(&group.scratch),
      options_(std::move(options)),
      notes_(group, identity, note_sizes(*group.parts),
             [this](std::span<const std::byte> payload, std::byte* into) {
               copy_kept_part(payload, into);
             }),
      copies_(notes_, group.parts->hosts()) {
  CHECK(static_cast<int>(options_.splits.size()) == parts().group_members(),
        "there is one split for each member");
  std::int64_t sum = 0;
  for (const std::int64_t rows : options_.splits) {
    CHECK(rows >= 0 && rows <= options_.rows - sum, "the splits do not exceed the rows");
    sum += rows;
  }
}

std::int64_t HostsAlltoall::splits_bytes() const {
  return static_cast<std::int64_t>(options_.splits.size()) * kNumberBytes;
}

std::int64_t HostsAlltoall::publish_input() {
  std::memcpy(notes_.own_published_data(splits_bytes()), options_.splits.data(),
              static_cast<std::size_t>(splits_bytes()));
  return options_.rows;
}

std::optional<NoteHeader> HostsAlltoall::write_note(std::span<std::byte> payload) const {
  std::byte* to = payload.data() + kNumberBytes;
  for (int member = 0; member < parts().members_on(parts().host); ++member) {
    std::memcpy(to, notes_.published_data(member, splits_bytes()),
                static_cast<std::size_t>(splits_bytes()));
    to += splits_bytes();
  }
  const auto longest_bytes = longest_stream(payload.subspan(kNumberBytes));
  if (!longest_bytes) return std::nullopt;
  std::memcpy(payload.data(), &*longest_bytes, sizeof(*longest_bytes));
  return NoteHeader{};
}

// Returns how many bytes the longest stream from our host has. Empty if a member sends a negative
// number of rows or more rows than it has, or if a sum overflows.
std::optional<std::int64_t> HostsAlltoall::longest_stream(std::span<const std::byte> splits) const {
  const int members = parts().group_members();
  std::vector<std::int64_t> streams(parts().members.size(), 0);
  for (int sender = 0; sender < parts().members_on(parts().host); ++sender) {
    std::int64_t rows_left = notes_.entry_barrier().declared_count(sender);
    for (int receiver = 0; receiver < members; ++receiver) {
      const std::int64_t rows = number_at(splits.data(), std::int64_t{sender} * members + receiver);
      std::int64_t& stream = streams[static_cast<std::size_t>(parts().host_of(receiver))];
      if (rows < 0 || rows > rows_left || __builtin_add_overflow(stream, rows, &stream))
        return std::nullopt;
      rows_left -= rows;
    }
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(std::ranges::max(streams), options_.row_bytes, &bytes))
    return std::nullopt;
  return bytes;
}

// Copies to `into` the length of the longest stream and the splits for the members of our host.
void HostsAlltoall::copy_kept_part(std::span<const std::byte> payload, std::byte* into) const {
  const auto copy = [&](std::int64_t index) {
    std::memcpy(into, payload.data() + index * kNumberBytes, kNumberBytes);
    into += kNumberBytes;
  };
  copy(0);
  const auto numbers = static_cast<std::int64_t>(payload.size()) / kNumberBytes;
  for (std::int64_t begin = 1; begin < numbers; begin += parts().group_members())
    for (const int to : members_on(parts().host)) copy(begin + to);
}

std::int64_t HostsAlltoall::rows_sent(int sender_index, int receiver) const {
  return number_at(notes_.own_payload(), 1 + sender_index * parts().group_members() + receiver);
}

std::int64_t HostsAlltoall::rows_received(int sender_host, int sender_index,
                                          int receiver_index) const {
  return number_at(notes_.payload(sender_host),
                   1 + sender_index * parts().members_on(parts().host) + receiver_index);
}

// Returns false if a number is negative or a sum overflows.
bool HostsAlltoall::read_received_rows() {
  scratch_->counts.assign(static_cast<std::size_t>(parts().group_members()), 0);
  for (int host = 0; host < parts().hosts(); ++host)
    for (int index = 0; index < parts().members_on(host); ++index)
      scratch_
          ->counts[static_cast<std::size_t>(members_on(host)[static_cast<std::size_t>(index)])] =
          rows_received(host, index, notes_.entry_barrier().group().member);
  return compute_row_offsets(*scratch_, options_.row_bytes);
}

std::optional<std::int64_t> HostsAlltoall::on_all_arrived() {
  if (!read_received_rows()) return std::nullopt;
  std::optional<HostCopies::Streams> copy_streams = streams();
  if (!copy_streams) return std::nullopt;
  std::byte* const output = options_.allocate(scratch_->counts);
  return copies_.start(std::move(*copy_streams), options_.input, output);
}

// Empty if an incoming stream is longer than the note of the sending host says.
std::optional<HostCopies::Streams> HostsAlltoall::streams() const {
  HostCopies::Streams streams;
  for (int host = 0; host < parts().hosts(); ++host) {
    const std::int64_t longest_bytes = number_at(notes_.payload(host), 0);
    const bool is_own_host = host == parts().host;
    streams.outgoing.push_back(outgoing_to(host));
    streams.incoming.push_back(is_own_host ? HostStream() : incoming_from(host));
    if (streams.incoming.back().bytes() > longest_bytes) return std::nullopt;
    streams.longest_bytes = std::max(streams.longest_bytes, longest_bytes);
  }
  return streams;
}

// The field `input_offset` is used only in the blocks that this member sends.
HostStream HostsAlltoall::outgoing_to(int host) const {
  // For each member of the group: where our rows for it begin.
  std::vector<std::int64_t> row_begins;
  std::int64_t rows = 0;
  for (const std::int64_t split : options_.splits) {
    row_begins.push_back(rows);
    rows += split;
  }
  HostStream stream;
  for (int sender_index = 0; sender_index < parts().members_on(parts().host); ++sender_index)
    for (int index = 0; index < parts().members_on(host); ++index) {
      const int receiver = members_on(host)[static_cast<std::size_t>(index)];
      const int sender = members_on(parts().host)[static_cast<std::size_t>(sender_index)];
      stream.add(
          {.sender = sender_index,
           .receiver = index,
           .bytes = rows_sent(sender_index, receiver) * options_.row_bytes,
           .input_offset = row_begins[static_cast<std::size_t>(receiver)] * options_.row_bytes,
           .output_offset = scratch_->offsets[static_cast<std::size_t>(sender)]});
    }
  return stream;
}

// The field `output_offset` is used only in the blocks that this member receives.
HostStream HostsAlltoall::incoming_from(int host) const {
  HostStream stream;
  for (int sender_index = 0; sender_index < parts().members_on(host); ++sender_index) {
    const int sender = members_on(host)[static_cast<std::size_t>(sender_index)];
    for (int index = 0; index < parts().members_on(parts().host); ++index)
      stream.add({.sender = sender_index,
                  .receiver = index,
                  .bytes = rows_received(host, sender_index, index) * options_.row_bytes,
                  .output_offset = scratch_->offsets[static_cast<std::size_t>(sender)]});
  }
  return stream;
}

}  // namespace farandole
