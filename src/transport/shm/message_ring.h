// MessageRing: a bounded queue in shared memory for the control messages from one member of a group
// to another. It has one sender and one receiver. A message consists of its length and its bytes,
// padded to whole words of 8 bytes. So each length lies in one word, and no length is split at the
// end of the buffer. A receiver of many rings may share a counter with their senders. The receiver
// then checks its rings only when the counter has changed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "transport/shm/doorbells.h"

namespace farandole {

inline constexpr std::size_t kMessageRingBytes = 64 * 1024;

// One end of the queue. Only one thread at a time may use it. The whole state of the queue is in
// shared memory: two positions, each with one writer.
template <class Atomics, std::size_t Capacity = kMessageRingBytes>
class BasicMessageRing {
 public:
  static constexpr std::size_t kCapacityBytes = Capacity;

  template <class T>
  using Atomic = typename Atomics::template Atomic<T>;
  struct alignas(kFlagLineBytes) Position {
    Atomic<std::uint64_t> bytes;  // the total number of bytes that were written or read
  };

  // The number of messages that were sent to all rings that share this counter.
  struct alignas(kFlagLineBytes) Counter {
    Atomic<std::uint32_t> messages;
  };

  static constexpr std::size_t bytes_needed() { return 2 * sizeof(Position) + Capacity; }

  // Both ends map the same bytes_needed() bytes, which are zero at first. `peer` is the world rank
  // at the other end. The doorbell of this rank rings after every send and receive. `sent_counter`
  // is the counter that the receiver shares with its senders, or null.
  BasicMessageRing(std::byte* memory, BasicDoorbells<Atomics>& doorbells, int peer,
                   Counter* sent_counter = nullptr)
      : write_position_(reinterpret_cast<Position*>(memory)),
        read_position_(write_position_ + 1),
        buffer_(memory + 2 * sizeof(Position)),
        doorbells_(&doorbells),
        peer_(peer),
        sent_counter_(sent_counter) {}

  // Sends `first` and `second` as one message, of at most kCapacityBytes / 2 bytes. Returns false
  // if there is no room at the moment; try again after the doorbell has rung.
  bool try_send(std::span<const std::byte> first, std::span<const std::byte> second = {});
  // Returns the next message; empty if there is none.
  std::optional<Bytes> try_receive();

 private:
  static constexpr std::size_t kWordBytes = sizeof(std::uint64_t);
  static_assert(Capacity % kWordBytes == 0 && Capacity >= 4 * kWordBytes);

  static constexpr std::size_t padded_bytes(std::size_t bytes) {
    return (bytes + kWordBytes - 1) / kWordBytes * kWordBytes;
  }
  void copy_in(std::uint64_t position, const std::byte* from, std::size_t bytes);
  void copy_out(std::uint64_t position, std::byte* to, std::size_t bytes) const;

  Position* write_position_;
  Position* read_position_;
  std::byte* buffer_;
  BasicDoorbells<Atomics>* doorbells_;
  int peer_;
  Counter* sent_counter_;
};

template <class Atomics, std::size_t Capacity>
bool BasicMessageRing<Atomics, Capacity>::try_send(std::span<const std::byte> first,
                                                   std::span<const std::byte> second) {
  const std::uint64_t length = first.size() + second.size();
  CHECK(length <= Capacity / 2, "a message fills at most half of its ring");
  const auto bytes_written = write_position_->bytes.load(std::memory_order_relaxed);
  const auto bytes_read = read_position_->bytes.load(std::memory_order_seq_cst);
  const std::size_t record_bytes = kWordBytes + padded_bytes(length);
  if (Capacity - (bytes_written - bytes_read) < record_bytes) return false;
  copy_in(bytes_written, reinterpret_cast<const std::byte*>(&length), kWordBytes);
  copy_in(bytes_written + kWordBytes, first.data(), first.size());
  if (!second.empty())
    copy_in(bytes_written + kWordBytes + first.size(), second.data(), second.size());
  write_position_->bytes.store(bytes_written + record_bytes, std::memory_order_seq_cst);
  if (sent_counter_ != nullptr) sent_counter_->messages.fetch_add(1, std::memory_order_seq_cst);
  doorbells_->ring(peer_);
  return true;
}

template <class Atomics, std::size_t Capacity>
std::optional<Bytes> BasicMessageRing<Atomics, Capacity>::try_receive() {
  const auto bytes_read = read_position_->bytes.load(std::memory_order_relaxed);
  const auto bytes_written = write_position_->bytes.load(std::memory_order_seq_cst);
  if (bytes_read == bytes_written) return std::nullopt;
  std::uint64_t length = 0;
  copy_out(bytes_read, reinterpret_cast<std::byte*>(&length), kWordBytes);
  CHECK(length <= Capacity / 2, "a message fills at most half of its ring");
  Bytes message(length);
  copy_out(bytes_read + kWordBytes, message.data(), message.size());
  read_position_->bytes.store(bytes_read + kWordBytes + padded_bytes(length),
                              std::memory_order_seq_cst);
  doorbells_->ring(peer_);
  return message;
}

template <class Atomics, std::size_t Capacity>
void BasicMessageRing<Atomics, Capacity>::copy_in(std::uint64_t position, const std::byte* from,
                                                  std::size_t bytes) {
  const std::size_t offset = position % Capacity;
  const std::size_t bytes_to_end = std::min(bytes, Capacity - offset);
  Atomics::write_bytes(buffer_ + offset, from, bytes_to_end);
  Atomics::write_bytes(buffer_, from + bytes_to_end, bytes - bytes_to_end);
}

template <class Atomics, std::size_t Capacity>
void BasicMessageRing<Atomics, Capacity>::copy_out(std::uint64_t position, std::byte* to,
                                                   std::size_t bytes) const {
  const std::size_t offset = position % Capacity;
  const std::size_t bytes_to_end = std::min(bytes, Capacity - offset);
  Atomics::read_bytes(to, buffer_ + offset, bytes_to_end);
  Atomics::read_bytes(to + bytes_to_end, buffer_, bytes - bytes_to_end);
}

using MessageRing = BasicMessageRing<HardwareAtomics>;

}  // namespace farandole
