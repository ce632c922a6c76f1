#include "hosts/gathered_reduction.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "device/cpu/adasum.h"

// The payload of a note begins with a byte for each member of the host, which says whether the
// member contributes data. If the inputs are small, the inputs of these members follow.

namespace farandole {
namespace {

int largest_host_part(const HostParts& parts) {
  int members_max = 0;
  for (int host = 0; host < parts.hosts(); ++host)
    members_max = std::max(members_max, parts.members_on(host));
  return members_max;
}

bool fits_into_notes(const HostParts& parts, std::int64_t bytes) {
  return bytes <= note_data_bytes_max(parts.hosts()) / largest_host_part(parts);
}

std::int64_t flags_bytes(const HostParts& parts, int host) {
  return round_up(parts.members_on(host), kPieceAlignment);
}

}  // namespace

NoteSizes GatheredReduction::note_sizes(const HostParts& parts, std::int64_t bytes) {
  NoteSizes sizes;
  for (int host = 0; host < parts.hosts(); ++host)
    sizes.payload_bytes.push_back(flags_bytes(parts, host) + (fits_into_notes(parts, bytes)
                                                                  ? parts.members_on(host) * bytes
                                                                  : 0));
  return sizes;
}

GatheredReduction::GatheredReduction(Group& group, const StepIdentity& identity,
                                     const Options& options)
    : scratch_(&group.scratch),
      options_(options),
      notes_(group, identity, note_sizes(*group.parts, options.tensor.bytes())),
      copies_(notes_, 1) {}

std::int64_t GatheredReduction::publish_input() {
  if (fits_into_notes(parts(), bytes()) && !options_.tensor.joined && bytes() > 0)
    std::memcpy(notes_.own_published_data(bytes()), options_.tensor.input,
                static_cast<std::size_t>(bytes()));
  return declared_count_of(options_.tensor);
}

std::optional<NoteHeader> GatheredReduction::write_note(std::span<std::byte> payload) const {
  const EntryBarrier& entry_barrier = notes_.entry_barrier();
  NoteHeader header = {.declared_count = bytes()};
  std::ranges::fill(payload, std::byte{0});
  std::byte* to = payload.data() + flags_bytes(parts(), parts().host);
  for (int member = 0; member < entry_barrier.group().members(); ++member) {
    const std::int64_t declared_count = entry_barrier.declared_count(member);
    if (declared_count != bytes() && declared_count != kJoinedDeclaredCount + bytes())
      return std::nullopt;
    const bool is_present = !has_joined(entry_barrier, member);
    header.present_count += is_present ? 1 : 0;
    payload[static_cast<std::size_t>(member)] = static_cast<std::byte>(is_present);
    if (!fits_into_notes(parts(), bytes())) continue;
    if (is_present)
      std::memcpy(to, notes_.published_data(member, bytes()), static_cast<std::size_t>(bytes()));
    to += bytes();
  }
  return header;
}

void GatheredReduction::read_presence() {
  presence_.assign(static_cast<std::size_t>(parts().group_members()), false);
  for (int host = 0; host < parts().hosts(); ++host) {
    const std::byte* flag = notes_.payload(host);
    for (const int member : parts().members[static_cast<std::size_t>(host)])
      presence_[static_cast<std::size_t>(member)] = *flag++ != std::byte{0};
  }
}

std::optional<std::int64_t> GatheredReduction::on_all_arrived() {
  const auto present_count = notes_.present_count_in_group();
  if (present_count == 0) return std::nullopt;
  read_presence();
  Reduction& reduction = options_.tensor.reduction;
  reduction.divisor = reduction.op == ReduceOp::kAverageOfPresent ? static_cast<int>(present_count)
                                                                  : parts().group_members();
  if (!fits_into_notes(parts(), bytes())) return start_windows();
  if (!options_.tensor.joined && bytes() > 0) reduce_notes();
  return 0;
}

// Puts the inputs into the scratch list in rank order. In an Adasum, a member that has joined has a
// null entry. In other reductions, it has no entry.
template <class InputOf>
void GatheredReduction::collect_inputs(InputOf input_of) {
  scratch_->inputs.clear();
  for (int member = 0; member < parts().group_members(); ++member)
    if (is_present(member))
      scratch_->inputs.push_back(input_of(member));
    else if (is_adasum())
      scratch_->inputs.push_back(nullptr);
}

void GatheredReduction::reduce_notes() {
  collect_inputs([&](int member) {
    const int host = parts().host_of(member);
    return notes_.payload(host) + flags_bytes(parts(), host) + parts().index_of(member) * bytes() +
           options_.output_range.begin;
  });
  if (options_.output_range.bytes() == 0) return;
  const std::array outputs = {options_.tensor.output};
  reduce(options_.tensor.reduction, scratch_->inputs, outputs,
         options_.output_range.bytes() / options_.tensor.element_bytes());
}

std::int64_t GatheredReduction::start_windows() {
  const std::int64_t members = parts().group_members();
  const std::int64_t piece_bytes_max = copies_.chunk_bytes() / largest_host_part(parts());
  const std::int64_t alignment =
      piece_bytes_max < kPieceAlignment ? sizeof(std::int64_t) : kPieceAlignment;
  piece_bytes_ = piece_bytes_max / alignment * alignment;
  CHECK(piece_bytes_ > 0, "a window has room for an element of each member of a host");
  pieces_in_pass_ = rounds_for(bytes(), piece_bytes_);
  HostCopies::Streams streams = {.window_count = pieces_in_pass_ * (is_adasum() ? 2 : 1)};
  streams.outgoing.push_back(stream_of(parts().host));
  for (int host = 0; host < parts().hosts(); ++host)
    streams.incoming.push_back(host == parts().host ? HostStream() : stream_of(host));
  const auto input_count = static_cast<std::size_t>(members);
  scratch_->dot_products.assign(dot_product_count(input_count), 0);
  scratch_->weights.assign(input_count, 0);
  if (!options_.tensor.joined) buffer_.resize(static_cast<std::size_t>(2 * members * piece_bytes_));
  return copies_.start(std::move(streams), options_.tensor.input,
                       options_.tensor.joined ? nullptr : buffer_.data());
}

StreamRange GatheredReduction::piece(std::int64_t window) const {
  const std::int64_t begin = window % pieces_in_pass_ * piece_bytes_;
  return {begin, std::min(begin + piece_bytes_, bytes())};
}

HostStream GatheredReduction::stream_of(int host) const {
  HostStream stream;
  const std::int64_t window_count = pieces_in_pass_ * (is_adasum() ? 2 : 1);
  for (std::int64_t window = 0; window < window_count; ++window) {
    const StreamRange range = piece(window);
    const std::int64_t half_begin = window % 2 * parts().group_members();
    int index = 0;
    for (const int member : parts().members[static_cast<std::size_t>(host)]) {
      stream.add({.sender = index++,
                  .bytes = is_present(member) ? range.bytes() : 0,
                  .input_offset = range.begin,
                  .output_offset = (half_begin + member) * piece_bytes_});
    }
    stream.end_chunk();
  }
  return stream;
}

void GatheredReduction::fetch(std::int64_t window) {
  copies_.fetch(window);
  if (options_.tensor.joined) return;
  const StreamRange range = piece(window);
  const std::byte* const half =
      buffer_.data() + window % 2 * parts().group_members() * piece_bytes_;
  collect_inputs([&](int member) { return half + member * piece_bytes_; });
  if (!is_adasum() || window >= pieces_in_pass_) return reduce_output_range(range);
  const Reduction& reduction = options_.tensor.reduction;
  Adasum(reduction.dtype)
      .add_dot_products(scratch_->inputs, range.bytes() / options_.tensor.element_bytes(),
                        scratch_->dot_products);
  if (window + 1 == pieces_in_pass_)
    compute_adasum_weights(scratch_->dot_products, reduction.prescale * reduction.postscale,
                           scratch_->weights);
}

// Reduces the part of a piece that goes to our output. The scratch list points to the piece of each
// input.
void GatheredReduction::reduce_output_range(StreamRange range) {
  const StreamRange output_part = {std::max(range.begin, options_.output_range.begin),
                                   std::min(range.end, options_.output_range.end)};
  if (output_part.bytes() <= 0) return;
  for (const std::byte*& input : scratch_->inputs)
    if (input != nullptr) input += output_part.begin - range.begin;
  const std::array outputs = {options_.tensor.output +
                              (output_part.begin - options_.output_range.begin)};
  const std::int64_t count = output_part.bytes() / options_.tensor.element_bytes();
  const Reduction& reduction = options_.tensor.reduction;
  if (is_adasum())
    Adasum(reduction.dtype).add_weighted(scratch_->inputs, scratch_->weights, outputs, count);
  else
    reduce(reduction, scratch_->inputs, outputs, count);
}

}  // namespace farandole
