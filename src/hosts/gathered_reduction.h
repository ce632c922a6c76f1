// GatheredReduction: a reduction of a group that has members on several hosts. It does not use host
// sums: every member gets the inputs of all members and reduces them itself, in rank order. Two
// reductions need this. An Adasum needs the dot products of all inputs. An average of integers of
// less than 64 bits must add all inputs in 64 bits before it divides, because even the sum of one
// host may not fit into the type of the inputs.
//
// A window carries the same piece of every input. These pieces are copied or received into a
// buffer. The buffer has two halves, because the members of our host contribute the next piece
// before the previous piece is complete. An Adasum makes two passes over the pieces: the first adds
// up the dot products, the second adds the weighted inputs.
//
// Cost for n bytes on h hosts with p members each: small inputs travel in the notes, which takes 2
// waits and a one-way latency. Otherwise a host sends (h − 1) pn bytes per pass, with the waits of
// HostCopies, and each member moves about 4hpn bytes per pass, or fewer if it is alone on its host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "collective/allreduce.h"
#include "hosts/copies.h"
#include "hosts/notes.h"
#include "hosts/streams.h"
#include "hosts/windows.h"

namespace farandole {

class GatheredReduction final : public StepBetweenHosts {
 public:
  struct Options {
    AllreduceOptions tensor;
    StreamRange output_range;  // the bytes of the result that go to our output; whole elements
  };

  static NoteSizes note_sizes(const HostParts& parts, std::int64_t bytes);

  // check_reduction() must accept the reduction. The memory is borrowed until the step has ended.
  GatheredReduction(Group& group, const StepIdentity& identity, const Options& options);

  Progress advance() override { return advance_between_hosts(notes_, windows_, *this, *this); }

  // These functions implement the algorithm; see HostNotes, advance_between_hosts() and
  // BasicHostWindows.
  std::int64_t publish_input();
  std::optional<NoteHeader> write_note(std::span<std::byte> payload) const;
  std::optional<std::int64_t> on_all_arrived();
  void stage(std::int64_t window) const { copies_.stage(window); }
  void begin(std::int64_t window) { copies_.begin(window); }
  static bool drive() { return false; }
  bool is_complete(std::int64_t window) const { return copies_.is_complete(window); }
  void fetch(std::int64_t window);

 private:
  const HostParts& parts() const { return notes_.parts(); }
  bool is_adasum() const { return options_.tensor.is_adasum(); }
  std::int64_t bytes() const { return options_.tensor.bytes(); }
  bool is_present(int member) const { return presence_[static_cast<std::size_t>(member)]; }
  StreamRange piece(std::int64_t window) const;
  void read_presence();
  void reduce_notes();
  std::int64_t start_windows();
  HostStream stream_of(int host) const;
  template <class InputOf>
  void collect_inputs(InputOf input_of);
  void reduce_output_range(StreamRange range);

  StepScratch* scratch_;  // owned by the group; only this step uses it until this step ends
  Options options_;
  HostNotes notes_;
  HostWindows windows_;
  HostCopies copies_;
  std::vector<bool> presence_;     // for each member of the group: whether it contributes data
  std::vector<std::byte> buffer_;  // two halves; each half has a piece of every member
  std::int64_t piece_bytes_ = 0;
  std::int64_t pieces_in_pass_ = 0;
};

}  // namespace farandole
