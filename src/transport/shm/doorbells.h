// Doorbells: how the members of a job on one host wake each other, and how the end of a member
// reaches every sleeper. One line per rank, written by its owner (but for the bell itself), plus
// the closing word of the epoch. The protocol is that of `docs/architecture.md`, "Flags".
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "transport/shm/atomics.h"

namespace farandole {

inline constexpr std::size_t kFlagLineBytes = 128;  // two cache lines: adjacent-line prefetch
inline constexpr std::size_t kLeaveReasonBytesMax = 480;

template <class Atomics>
class BasicDoorbells {
 public:
  template <class T>
  using Atomic = typename Atomics::template Atomic<T>;

  // All of it lies in shared memory that starts as zero bytes.
  struct alignas(kFlagLineBytes) Line {
    Atomic<std::uint32_t> bell;    // bumped by whoever wakes this rank
    Atomic<std::uint32_t> asleep;  // 1 while this rank may be sleeping
    Atomic<std::uint32_t> left;    // the rank's ticket among those that left in order; 0: still here
    Atomic<std::uint32_t> acknowledged;  // 1: has left its write section for good
    std::uint32_t reason_bytes;          // written before `left`
    std::array<char, kLeaveReasonBytesMax> reason;
  };
  struct alignas(kFlagLineBytes) Header {
    Atomic<std::uint32_t> closing;  // 0: open; else the rank + 1 whose death closed the epoch
    Atomic<std::uint32_t> leavers;  // how many tickets were drawn
  };

  static std::size_t bytes_needed(int size) {
    return sizeof(Header) + static_cast<std::size_t>(size) * sizeof(Line);
  }

  // `memory`: bytes_needed(size) zeroed bytes, the same for all ranks, outliving this.
  BasicDoorbells(std::byte* memory, int rank, int size);

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Wakes `other` if it may be asleep. Call after the store that it waits for (seq_cst).
  void ring(int other);
  // Wakes a sleeper of our own rank: after a submit, or from the watch thread.
  void ring_self();

  // The sleeping side, in this order, by the holder of the baton only:
  //   ticket = prepare_sleep();  look at everything again;  then either cancel_sleep() or
  //   sleep(ticket, limit).
  std::uint32_t prepare_sleep();
  void cancel_sleep();
  void sleep(std::uint32_t ticket, Duration limit);

  // An orderly leave, once; the reason is cut at kLeaveReasonBytesMax. Rings everybody.
  void leave(std::string_view reason);
  struct Leaver {
    std::uint32_t ticket;  // 1 left first
    std::string reason;
  };
  std::optional<Leaver> leaver(int rank) const;

  // A death, seen by anybody. The first one is kept, so that all name the same culprit. Stores the
  // closing word, then rings everybody.
  void close(int dead_rank);
  std::optional<int> closed_by() const;
  // The holder of the baton has left its write section and will not advance this epoch again.
  void acknowledge_close();
  bool acknowledged(int rank) const;

 private:
  Line& line(int rank) const;

  Header* header_;
  Line* lines_;
  int rank_;
  int size_;
};

using Doorbells = BasicDoorbells<HardwareAtomics>;

}  // namespace farandole
