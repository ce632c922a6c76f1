// Doorbells: let the ranks of a job on one host wake each other, and wake every sleeping rank when
// another rank leaves or dies. The shared memory has the closing word of the epoch and one line per
// rank. In the line of another rank, a rank writes only the bell. `docs/architecture.md`, "Flags",
// describes the protocol.
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

// Two cache lines, because processors also prefetch the adjacent cache line.
inline constexpr std::size_t kFlagLineBytes = 128;
inline constexpr std::size_t kLeaveReasonBytesMax = 480;

template <class Atomics>
class BasicDoorbells {
 public:
  template <class T>
  using Atomic = typename Atomics::template Atomic<T>;

  // These structures lie in shared memory, which starts as zero bytes.
  struct alignas(kFlagLineBytes) Line {
    Atomic<std::uint32_t> bell;    // incremented by the ranks that wake this rank
    Atomic<std::uint32_t> asleep;  // 1 while this rank may be sleeping
    // 1 + the number of ranks that left before this rank; 0 while this rank has not left.
    Atomic<std::uint32_t> left;
    Atomic<std::uint32_t> reason_bytes;  // length of `reason`; both are written before `left`
    std::array<std::byte, kLeaveReasonBytesMax> reason;
    // The reason why this rank has ended the epoch; written before the closing word.
    Atomic<std::uint32_t> closing_reason_bytes;
    std::array<std::byte, kLeaveReasonBytesMax> closing_reason;
  };
  struct alignas(kFlagLineBytes) Header {
    // The closing word. 0: the epoch continues. Otherwise it has three fields of kClosingFieldBits
    // bits. The lowest field is 1 + the rank whose failure has ended the epoch. The next field is 0
    // if no reason was given; otherwise it is 1 + the rank that has ended the epoch and has written
    // the reason into its line. The highest field is the number of ranks that had left in an
    // orderly way before the end of the epoch.
    Atomic<std::uint64_t> closing;
    Atomic<std::uint32_t> leavers;  // the number of ranks that have begun to leave
  };

  static constexpr unsigned kClosingFieldBits = 21;

  static std::size_t bytes_needed(int size) {
    return sizeof(Header) + static_cast<std::size_t>(size) * sizeof(Line);
  }

  // `memory` is bytes_needed(size) bytes that all ranks share and that are zero at first. It must
  // outlive this object.
  BasicDoorbells(std::byte* memory, int rank, int size);

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Wakes `other` if it may be asleep. Call it after the store that `other` waits for. This store
  // must be seq_cst.
  void ring(int other) {
    if (is_asleep(other)) wake(other);
  }
  bool is_asleep(int other) const {
    return line(other).asleep.load(std::memory_order_seq_cst) != 0;
  }
  void wake(int other);
  // Wakes the sleeping thread of our own rank, for example after a call was submitted. Any thread
  // may call it.
  void ring_self();

  // To sleep, the holder of the progress lock makes these calls, in this order:
  //   ticket = prepare_sleep();
  //   check everything again;
  //   cancel_sleep() if something has changed, otherwise sleep(ticket, limit).
  std::uint32_t prepare_sleep();
  void cancel_sleep();
  void sleep(std::uint32_t ticket, Duration limit);

  // Leaves the job in an orderly way and rings all ranks. Call it only once. Cuts the reason after
  // kLeaveReasonBytesMax bytes.
  void leave(std::string_view reason);
  struct Leaver {
    std::uint32_t ticket;  // the rank with ticket 1 was the first to leave
    std::string reason;
  };
  std::optional<Leaver> leaver(int rank) const;
  bool has_left(int rank) const { return line(rank).left.load(std::memory_order_seq_cst) != 0; }
  // Returns how many ranks have begun to leave. This is a cheap check: if two reads differ, a rank
  // has begun to leave between the two reads.
  std::uint32_t leavers() const { return header_->leavers.load(std::memory_order_seq_cst); }

  // Ends the epoch because `dead_rank` has died, or has given up a call that others may complete.
  // Stores the closing word, then rings all ranks. Every rank that notices the failure may call it.
  // Only the first close() sets the word, so that all ranks name the same failed rank. Without a
  // reason, any thread may call it; with a reason, only the holder of the progress lock may. Cuts
  // the reason after kLeaveReasonBytesMax bytes.
  void close(int dead_rank, std::string_view reason = {});
  // Returns the failed rank; empty while the epoch continues.
  std::optional<int> closed_by() const;
  // The reason that the first close() gave; empty if it gave none. Call closing_reason() and
  // leavers_before_closing() only if closed_by() has a value.
  std::string closing_reason() const;
  // Returns how many ranks had left in an orderly way before the epoch ended. The number shows
  // whether a call failed because of the failed rank or because of a rank that had left.
  std::uint32_t leavers_before_closing() const;

 private:
  Line& line(int rank) const {
    CHECK(rank >= 0 && rank < size_, "a rank lies between 0 and the size of the job");
    return lines_[rank];
  }
  // Increments the bell even if no thread seems to be asleep. Use it instead of ring() after a
  // store that is not seq_cst, and after a store of the closing word.
  void ring_always(int rank);
  void ring_all();
  // Returns a field of the closing word.
  std::uint32_t closing_field(unsigned field) const {
    const auto closing = header_->closing.load(std::memory_order_seq_cst);
    return closing >> field * kClosingFieldBits & ((1U << kClosingFieldBits) - 1);
  }

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
  CHECK(size >> kClosingFieldBits == 0, "the closing word has room for all ranks");
}

template <class Atomics>
void BasicDoorbells<Atomics>::wake(int other) {
  Line& sleeper = line(other);
  sleeper.bell.fetch_add(1, std::memory_order_seq_cst);
  Atomics::futex_wake(sleeper.bell);
}

template <class Atomics>
void BasicDoorbells<Atomics>::ring_always(int rank) {
  // If the rank sets `asleep` only after we have loaded `asleep` below, it then checks everything
  // again and finds the store that it waits for.
  line(rank).bell.fetch_add(1, std::memory_order_seq_cst);
  if (line(rank).asleep.load(std::memory_order_seq_cst) != 0) Atomics::futex_wake(line(rank).bell);
}

template <class Atomics>
void BasicDoorbells<Atomics>::ring_all() {
  for (int rank = 0; rank < size_; ++rank) ring_always(rank);
}

template <class Atomics>
void BasicDoorbells<Atomics>::ring_self() {
  ring_always(rank_);
}

template <class Atomics>
std::uint32_t BasicDoorbells<Atomics>::prepare_sleep() {
  // Load the bell before we store `asleep`. If the bell rings after this load, sleep() returns
  // immediately. The caller checks everything again after this function. If another rank stores
  // something after this check, that rank finds `asleep` set and rings.
  const std::uint32_t ticket = line(rank_).bell.load(std::memory_order_seq_cst);
  line(rank_).asleep.store(1, std::memory_order_seq_cst);
  return ticket;
}

template <class Atomics>
void BasicDoorbells<Atomics>::cancel_sleep() {
  // A relaxed store is enough: if another rank sees the store late, it only rings once without
  // need.
  line(rank_).asleep.store(0, std::memory_order_relaxed);
}

template <class Atomics>
void BasicDoorbells<Atomics>::sleep(std::uint32_t ticket, Duration limit) {
  Atomics::futex_wait(line(rank_).bell, ticket, limit);
  cancel_sleep();
}

template <class Atomics>
void BasicDoorbells<Atomics>::leave(std::string_view reason) {
  Line& own_line = line(rank_);
  CHECK(own_line.left.load(std::memory_order_relaxed) == 0, "a member leaves its job only once");
  const auto bytes = std::min(reason.size(), kLeaveReasonBytesMax);
  Atomics::write_bytes(own_line.reason.data(), reinterpret_cast<const std::byte*>(reason.data()),
                       bytes);
  own_line.reason_bytes.store(static_cast<std::uint32_t>(bytes), std::memory_order_relaxed);
  const auto ticket = header_->leavers.fetch_add(1, std::memory_order_seq_cst) + 1;
  own_line.left.store(ticket, std::memory_order_seq_cst);
  ring_all();
}

template <class Atomics>
auto BasicDoorbells<Atomics>::leaver(int rank) const -> std::optional<Leaver> {
  Line& leaver_line = line(rank);
  const auto ticket = leaver_line.left.load(std::memory_order_seq_cst);
  if (ticket == 0) return std::nullopt;
  const auto bytes = std::min<std::size_t>(leaver_line.reason_bytes.load(std::memory_order_relaxed),
                                           kLeaveReasonBytesMax);
  Leaver leaver{ticket, std::string(bytes, '\0')};
  Atomics::read_bytes(reinterpret_cast<std::byte*>(leaver.reason.data()), leaver_line.reason.data(),
                      bytes);
  return leaver;
}

template <class Atomics>
void BasicDoorbells<Atomics>::close(int dead_rank, std::string_view reason) {
  CHECK(dead_rank >= 0 && dead_rank < size_, "a rank lies between 0 and the size of the job");
  // Our first close() ends the epoch, and then other ranks may read the reason in our line. So we
  // write the reason only while the epoch continues.
  if (!reason.empty() && !closed_by()) {
    Line& own_line = line(rank_);
    const auto bytes = std::min(reason.size(), kLeaveReasonBytesMax);
    Atomics::write_bytes(own_line.closing_reason.data(),
                         reinterpret_cast<const std::byte*>(reason.data()), bytes);
    own_line.closing_reason_bytes.store(static_cast<std::uint32_t>(bytes),
                                        std::memory_order_relaxed);
  }
  std::uint64_t expected_word = 0;
  const auto failed_rank_field = static_cast<std::uint64_t>(dead_rank) + 1;
  const auto closer_field = reason.empty() ? 0 : static_cast<std::uint64_t>(rank_) + 1;
  header_->closing.compare_exchange_strong(expected_word,
                                           std::uint64_t{leavers()} << 2 * kClosingFieldBits |
                                               closer_field << kClosingFieldBits |
                                               failed_rank_field,
                                           std::memory_order_seq_cst);
  // Ring even if another rank has stored the word first, because that rank may have died before it
  // rang.
  ring_all();
}

template <class Atomics>
std::optional<int> BasicDoorbells<Atomics>::closed_by() const {
  const std::uint32_t failed_rank_field = closing_field(0);
  if (failed_rank_field == 0) return std::nullopt;
  return static_cast<int>(failed_rank_field) - 1;
}

template <class Atomics>
std::string BasicDoorbells<Atomics>::closing_reason() const {
  const std::uint32_t closer_field = closing_field(1);
  if (closer_field == 0) return {};
  const Line& closer_line = line(static_cast<int>(closer_field) - 1);
  const auto bytes = std::min<std::size_t>(
      closer_line.closing_reason_bytes.load(std::memory_order_relaxed), kLeaveReasonBytesMax);
  std::string reason(bytes, '\0');
  Atomics::read_bytes(reinterpret_cast<std::byte*>(reason.data()),
                      closer_line.closing_reason.data(), bytes);
  return reason;
}

template <class Atomics>
std::uint32_t BasicDoorbells<Atomics>::leavers_before_closing() const {
  return closing_field(2);
}

using Doorbells = BasicDoorbells<HardwareAtomics>;

}  // namespace farandole
