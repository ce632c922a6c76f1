// Doorbells: how the members of a job on one host wake each other, and how the end of a member
// reaches every sleeper. One line per rank, written by its owner (but for the bell itself), plus
// the closing word of the epoch. The protocol is that of `docs/architecture.md`, "Flags".
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
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
    Atomic<std::uint32_t> left;  // the rank's ticket among those that left in order; 0: still here
    Atomic<std::uint32_t> reason_bytes;  // written before `left`, as the reason is
    std::array<std::byte, kLeaveReasonBytesMax> reason;
  };
  struct alignas(kFlagLineBytes) Header {
    // 0: open; else the rank + 1 whose death closed the epoch, and above its 32 bits how many had
    // left in order before.
    Atomic<std::uint64_t> closing;
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
  // Wakes a sleeper of our own rank: after a submit, or from the watch thread. Any thread.
  void ring_self();

  // The sleeping side, in this order, by the holder of the progress lock only:
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
  bool has_left(int rank) const { return line(rank).left.load(std::memory_order_seq_cst) != 0; }
  // How many tickets were drawn: a cheap question whether there is news.
  std::uint32_t leavers() const { return header_->leavers.load(std::memory_order_seq_cst); }

  // A death, seen by anybody. The first one is kept, so that all name the same failed rank. Stores
  // the closing word, then rings everybody.
  void close(int dead_rank);
  std::optional<int> closed_by() const;
  // How many had left in order before the death: what they caused, the death did not. Needs
  // closed_by().
  std::uint32_t leavers_before_closing() const;

 private:
  Line& line(int rank) const {
    CHECK(rank >= 0 && rank < size_, "a rank lies between 0 and the size of the job");
    return lines_[rank];
  }
  // Whether or not somebody seems asleep: for what is not stored seq_cst, and for closing words.
  void ring_anyway(int rank);
  void ring_everybody();

  Header* header_;
  Line* lines_;
  int rank_;
  int size_;
};

template <class Atomics>
BasicDoorbells<Atomics>::BasicDoorbells(std::byte* memory, int rank, int size)
    : header_(reinterpret_cast<Header*>(memory)),
      lines_(reinterpret_cast<Line*>(memory + sizeof(Header))),
      rank_(rank),
      size_(size) {
  CHECK(rank >= 0 && rank < size, "a rank lies between 0 and the size of the job");
}

template <class Atomics>
void BasicDoorbells<Atomics>::ring(int other) {
  Line& sleeper = line(other);
  if (sleeper.asleep.load(std::memory_order_seq_cst) == 0) return;
  sleeper.bell.fetch_add(1, std::memory_order_seq_cst);
  Atomics::futex_wake(sleeper.bell);
}

template <class Atomics>
void BasicDoorbells<Atomics>::ring_anyway(int rank) {
  // Who sets `asleep` after our load had not looked again yet, and will find what we stored.
  line(rank).bell.fetch_add(1, std::memory_order_seq_cst);
  if (line(rank).asleep.load(std::memory_order_seq_cst) != 0) Atomics::futex_wake(line(rank).bell);
}

template <class Atomics>
void BasicDoorbells<Atomics>::ring_everybody() {
  for (int rank = 0; rank < size_; ++rank) ring_anyway(rank);
}

template <class Atomics>
void BasicDoorbells<Atomics>::ring_self() {
  ring_anyway(rank_);
}

template <class Atomics>
std::uint32_t BasicDoorbells<Atomics>::prepare_sleep() {
  // In this order: a bell rung after the load ends the sleep at once, and whoever stores after our
  // second look finds us asleep.
  const std::uint32_t ticket = line(rank_).bell.load(std::memory_order_seq_cst);
  line(rank_).asleep.store(1, std::memory_order_seq_cst);
  return ticket;
}

template <class Atomics>
void BasicDoorbells<Atomics>::cancel_sleep() {
  // Seen late it only costs the others a needless bell.
  line(rank_).asleep.store(0, std::memory_order_relaxed);
}

template <class Atomics>
void BasicDoorbells<Atomics>::sleep(std::uint32_t ticket, Duration limit) {
  Atomics::futex_wait(line(rank_).bell, ticket, limit);
  cancel_sleep();
}

template <class Atomics>
void BasicDoorbells<Atomics>::leave(std::string_view reason) {
  Line& mine = line(rank_);
  CHECK(mine.left.load(std::memory_order_relaxed) == 0, "a member leaves its job only once");
  const auto bytes = std::min(reason.size(), kLeaveReasonBytesMax);
  Atomics::write_bytes(mine.reason.data(), reinterpret_cast<const std::byte*>(reason.data()),
                       bytes);
  mine.reason_bytes.store(static_cast<std::uint32_t>(bytes), std::memory_order_relaxed);
  const auto ticket = header_->leavers.fetch_add(1, std::memory_order_seq_cst) + 1;
  mine.left.store(ticket, std::memory_order_seq_cst);
  ring_everybody();
}

template <class Atomics>
auto BasicDoorbells<Atomics>::leaver(int rank) const -> std::optional<Leaver> {
  Line& theirs = line(rank);
  const auto ticket = theirs.left.load(std::memory_order_seq_cst);
  if (ticket == 0) return std::nullopt;
  const auto bytes = std::min<std::size_t>(theirs.reason_bytes.load(std::memory_order_relaxed),
                                           kLeaveReasonBytesMax);
  Leaver leaver{ticket, std::string(bytes, '\0')};
  Atomics::read_bytes(reinterpret_cast<std::byte*>(leaver.reason.data()), theirs.reason.data(),
                      bytes);
  return leaver;
}

template <class Atomics>
void BasicDoorbells<Atomics>::close(int dead_rank) {
  CHECK(dead_rank >= 0 && dead_rank < size_, "a rank lies between 0 and the size of the job");
  std::uint64_t open = 0;
  const auto failed_rank = static_cast<std::uint64_t>(dead_rank) + 1;
  header_->closing.compare_exchange_strong(open, std::uint64_t{leavers()} << 32 | failed_rank,
                                           std::memory_order_seq_cst);
  // Also when another one closed first: it may have died before its bells.
  ring_everybody();
}

template <class Atomics>
std::optional<int> BasicDoorbells<Atomics>::closed_by() const {
  const auto closing = header_->closing.load(std::memory_order_seq_cst);
  if (closing == 0) return std::nullopt;
  return static_cast<int>(closing & 0xFFFFFFFF) - 1;
}

template <class Atomics>
std::uint32_t BasicDoorbells<Atomics>::leavers_before_closing() const {
  return static_cast<std::uint32_t>(header_->closing.load(std::memory_order_seq_cst) >> 32);
}

using Doorbells = BasicDoorbells<HardwareAtomics>;

}  // namespace farandole
