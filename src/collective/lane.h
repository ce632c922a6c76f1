// Lane: how one member of a group exchanges data with the other hosts of the group. The members of
// a group on one host are a host part. Lane k connects the k-th member of every host part. There
// are as many lanes as the smallest host part has members, so several processes drive the network.
//
// A step between hosts has two stages. First, member 0 of each host part waits until all members of
// its part have entered the step. It then sends an entry to the other hosts, and waits for their
// entries. An entry carries a note: a few bytes that the algorithm chooses. Then the lanes move
// data. No lane moves data of a step before its member knows that all members on all hosts have
// entered the step. So a step that is rolled back has moved no data. Data that arrives always
// belongs to a step that this member runs or is about to run. If the caller of a step gives it up,
// the caller must make the lane drop the borrowed memory before the calls of the step end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "collective/group.h"

namespace farandole {

// How many bytes a note may have.
inline constexpr std::size_t kNoteBytesMax = 64 * 1024;

// Only one thread at a time may use it: the holder of the progress lock. No function blocks. Hosts
// are numbers from 0 in the order of their lowest members.
class Lane {
 public:
  struct HostEntry {
    std::uint64_t id = 0;             // StepIdentity::id; the members compare it
    std::span<const std::byte> note;  // valid until this member enters the next step
  };

  virtual ~Lane() = default;

  // Only on lane 0. Tells all other hosts that all members of our host part have entered this step.
  // Copies the note.
  virtual void send_entry(const StepIdentity& step, std::span<const std::byte> note) = 0;
  // Only on lane 0. Returns the entry of another host for this generation and sequence; empty if it
  // has not arrived.
  virtual std::optional<HostEntry> entry(int host, const StepIdentity& step) const = 0;

  // Begins to move the data of a step that all members of all hosts have entered. Ends the previous
  // step. All data of that step must have been sent and received.
  virtual void begin(const StepIdentity& step) = 0;
  // Appends bytes to the stream that goes to another host in this step. The memory is borrowed
  // until bytes_sent() has counted it.
  virtual void send(int host, std::span<const std::byte> bytes) = 0;
  // Says where the next bytes of the stream from another host go. The memory is borrowed until
  // bytes_received() has counted it.
  virtual void receive(int host, std::span<std::byte> destination) = 0;
  // How many bytes of the step's streams have been sent or received since begin(). The counts do
  // not change while a step's advance() runs.
  virtual std::uint64_t bytes_sent(int host) const = 0;
  virtual std::uint64_t bytes_received(int host) const = 0;
};

}  // namespace farandole
