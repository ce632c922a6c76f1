#include "hosts/alltoall.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

// The group's scratch lists hold the splits of all members of the whole group, the number of rows
// that each sends to us, and where those rows begin in the output.

namespace farandole {

std::vector<std::int64_t> HostsAlltoall::payloads(const HostParts& hosts) {
  const std::int64_t bytes =
      hosts.group_members() * static_cast<std::int64_t>(sizeof(std::int64_t));
  std::vector<std::int64_t> sizes;
  for (int host = 0; host < hosts.hosts(); ++host) sizes.push_back(hosts.members_on(host) * bytes);
  return sizes;
}

HostsAlltoall::HostsAlltoall(Group& group, const StepIdentity& identity, Alltoall::Options options)
    : scratch_(&group.scratch),
      options_(std::move(options)),
      notes_(group, identity, payloads(*group.parts)),
      copies_(notes_, group.parts->hosts()) {
  CHECK(static_cast<int>(options_.splits.size()) == hosts().group_members(),
        "there is one split for each member");
  std::int64_t sent = 0;
  for (const std::int64_t rows : options_.splits) {
    CHECK(rows >= 0 && rows <= options_.rows - sent, "the splits do not exceed the rows");
    sent += rows;
  }
}

int HostsAlltoall::own_member() const {
  return members_on(hosts().host)[static_cast<std::size_t>(notes_.entry_barrier().group().member)];
}

std::int64_t HostsAlltoall::splits_bytes() const {
  return static_cast<std::int64_t>(options_.splits.size() * sizeof(std::int64_t));
}

std::int64_t HostsAlltoall::show() {
  std::memcpy(notes_.own_room(splits_bytes()), options_.splits.data(),
              static_cast<std::size_t>(splits_bytes()));
  return options_.rows;
}

std::optional<NoteHeader> HostsAlltoall::write_note(std::span<std::byte> payload) const {
  std::byte* to = payload.data();
  for (int member = 0; member < hosts().members_on(hosts().host); ++member) {
    std::memcpy(to, notes_.room(member, splits_bytes()), static_cast<std::size_t>(splits_bytes()));
    to += splits_bytes();
  }
  return NoteHeader{};
}

std::int64_t HostsAlltoall::split(int from, int to) const {
  return scratch_->splits[static_cast<std::size_t>(from) * options_.splits.size() +
                          static_cast<std::size_t>(to)];
}

void HostsAlltoall::read_splits() {
  const std::size_t members = options_.splits.size();
  scratch_->splits.resize(members * members);
  for (int host = 0; host < hosts().hosts(); ++host) {
    const std::byte* from = notes_.payload(host);
    for (const int member : members_on(host)) {
      std::memcpy(&scratch_->splits[static_cast<std::size_t>(member) * members], from,
                  static_cast<std::size_t>(splits_bytes()));
      from += splits_bytes();
    }
  }
}

// Returns the same on all members: false if a number is negative or a sum overflows.
bool HostsAlltoall::splits_fit() const {
  const int members = hosts().group_members();
  for (int member = 0; member < members; ++member) {
    std::int64_t sent = 0;
    std::int64_t received = 0;
    std::int64_t bytes = 0;
    for (int other = 0; other < members; ++other)
      if (split(member, other) < 0 || __builtin_add_overflow(sent, split(member, other), &sent) ||
          __builtin_add_overflow(received, split(other, member), &received))
        return false;
    if (__builtin_mul_overflow(sent, options_.row_bytes, &bytes) ||
        __builtin_mul_overflow(received, options_.row_bytes, &bytes))
      return false;
  }
  return true;
}

std::optional<std::int64_t> HostsAlltoall::all_arrived() {
  read_splits();
  if (!splits_fit()) return std::nullopt;
  scratch_->counts.clear();
  scratch_->offsets.clear();
  sent_before_.clear();
  std::int64_t received = 0;
  std::int64_t sent = 0;
  for (int member = 0; member < hosts().group_members(); ++member) {
    scratch_->counts.push_back(split(member, own_member()));
    scratch_->offsets.push_back(received * options_.row_bytes);
    sent_before_.push_back(sent);
    received += split(member, own_member());
    sent += split(own_member(), member);
  }
  std::byte* const output = options_.allocate(scratch_->counts);
  return copies_.start(streams(), options_.input, output);
}

std::int64_t HostsAlltoall::longest_stream() const {
  std::int64_t longest = 0;
  for (int from_host = 0; from_host < hosts().hosts(); ++from_host)
    for (int to_host = 0; to_host < hosts().hosts(); ++to_host) {
      std::int64_t rows = 0;
      for (const int from : members_on(from_host))
        for (const int to : members_on(to_host)) rows += split(from, to);
      longest = std::max(longest, rows * options_.row_bytes);
    }
  return longest;
}

// Where a block begins in an input or an output counts only for ours.
void HostsAlltoall::add_rows(HostStream& stream, int from_host, int to_host) const {
  int from_index = 0;
  for (const int from : members_on(from_host)) {
    int to_index = 0;
    for (const int to : members_on(to_host))
      stream.add({.from = from_index,
                  .to = to_index++,
                  .bytes = split(from, to) * options_.row_bytes,
                  .input = sent_before_[static_cast<std::size_t>(to)] * options_.row_bytes,
                  .output = scratch_->offsets[static_cast<std::size_t>(from)]});
    ++from_index;
  }
}

HostCopies::Streams HostsAlltoall::streams() {
  HostCopies::Streams streams = {.outgoing = std::vector<HostStream>(hosts().members.size()),
                                 .incoming = std::vector<HostStream>(hosts().members.size()),
                                 .longest = longest_stream()};
  for (int host = 0; host < hosts().hosts(); ++host) {
    add_rows(streams.outgoing[static_cast<std::size_t>(host)], hosts().host, host);
    if (host != hosts().host)
      add_rows(streams.incoming[static_cast<std::size_t>(host)], host, hosts().host);
  }
  return streams;
}

}  // namespace farandole
