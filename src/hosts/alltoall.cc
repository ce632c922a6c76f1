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
NoteSizes HostsAlltoall::note_sizes(const HostParts& hosts) {
  std::int64_t largest = 0;
  for (int host = 0; host < hosts.hosts(); ++host)
    largest = std::max<std::int64_t>(largest, hosts.members_on(host));
  NoteSizes sizes;
  for (int host = 0; host < hosts.hosts(); ++host) {
    const std::int64_t senders = hosts.members_on(host);
    sizes.payloads.push_back((1 + senders * hosts.group_members()) * kNumberBytes);
    sizes.kept.push_back((1 + senders * largest) * kNumberBytes);
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
  CHECK(static_cast<int>(options_.splits.size()) == hosts().group_members(),
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
  for (int member = 0; member < hosts().members_on(hosts().host); ++member) {
    std::memcpy(to, notes_.published_data(member, splits_bytes()),
                static_cast<std::size_t>(splits_bytes()));
    to += splits_bytes();
  }
  const auto longest = longest_stream(payload.subspan(kNumberBytes));
  if (!longest) return std::nullopt;
  std::memcpy(payload.data(), &*longest, sizeof(*longest));
  return NoteHeader{};
}

// Empty if a member sends a negative number of rows or more rows than it has, or if a sum
// overflows.
std::optional<std::int64_t> HostsAlltoall::longest_stream(std::span<const std::byte> splits) const {
  const int members = hosts().group_members();
  std::vector<std::int64_t> streams(hosts().members.size(), 0);
  for (int from = 0; from < hosts().members_on(hosts().host); ++from) {
    std::int64_t rows_left = notes_.entry_barrier().declared_count(from);
    for (int to = 0; to < members; ++to) {
      const std::int64_t rows = number_at(splits.data(), std::int64_t{from} * members + to);
      std::int64_t& stream = streams[static_cast<std::size_t>(hosts().host_of(to))];
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
  for (std::int64_t begin = 1; begin < numbers; begin += hosts().group_members())
    for (const int to : members_on(hosts().host)) copy(begin + to);
}

std::int64_t HostsAlltoall::rows_sent(int from_index, int to) const {
  return number_at(notes_.own_payload(), 1 + from_index * hosts().group_members() + to);
}

std::int64_t HostsAlltoall::rows_received(int from_host, int from_index, int to_index) const {
  return number_at(notes_.payload(from_host),
                   1 + from_index * hosts().members_on(hosts().host) + to_index);
}

// False if a number is negative or a sum overflows.
bool HostsAlltoall::read_received_rows() {
  scratch_->counts.assign(static_cast<std::size_t>(hosts().group_members()), 0);
  for (int host = 0; host < hosts().hosts(); ++host)
    for (int index = 0; index < hosts().members_on(host); ++index)
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

// Empty if a stream is longer than the note of its host says.
std::optional<HostCopies::Streams> HostsAlltoall::streams() const {
  HostCopies::Streams streams;
  for (int host = 0; host < hosts().hosts(); ++host) {
    const std::int64_t longest = number_at(notes_.payload(host), 0);
    const bool is_own_host = host == hosts().host;
    streams.outgoing.push_back(outgoing_to(host));
    streams.incoming.push_back(is_own_host ? HostStream() : incoming_from(host));
    if (streams.incoming.back().bytes() > longest) return std::nullopt;
    streams.longest = std::max(streams.longest, longest);
  }
  return streams;
}

// The field `input_offset` is used only in the blocks that this member sends.
HostStream HostsAlltoall::outgoing_to(int host) const {
  std::vector<std::int64_t> begins;  // for each member of the group: where our rows for it begin
  std::int64_t rows = 0;
  for (const std::int64_t split : options_.splits) {
    begins.push_back(rows);
    rows += split;
  }
  HostStream stream;
  for (int from = 0; from < hosts().members_on(hosts().host); ++from)
    for (int index = 0; index < hosts().members_on(host); ++index) {
      const auto to = static_cast<std::size_t>(members_on(host)[static_cast<std::size_t>(index)]);
      const int sender = members_on(hosts().host)[static_cast<std::size_t>(from)];
      stream.add({.from = from,
                  .to = index,
                  .bytes = rows_sent(from, static_cast<int>(to)) * options_.row_bytes,
                  .input_offset = begins[to] * options_.row_bytes,
                  .output_offset = scratch_->offsets[static_cast<std::size_t>(sender)]});
    }
  return stream;
}

// The field `output_offset` is used only in the blocks that this member receives.
HostStream HostsAlltoall::incoming_from(int host) const {
  HostStream stream;
  for (int from = 0; from < hosts().members_on(host); ++from) {
    const int sender = members_on(host)[static_cast<std::size_t>(from)];
    for (int to = 0; to < hosts().members_on(hosts().host); ++to)
      stream.add({.from = from,
                  .to = to,
                  .bytes = rows_received(host, from, to) * options_.row_bytes,
                  .output_offset = scratch_->offsets[static_cast<std::size_t>(sender)]});
  }
  return stream;
}

}  // namespace farandole
