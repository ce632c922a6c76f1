// MultiHostCounts: counts of events that occur only in jobs on several hosts.
#pragma once

#include <cstdint>

namespace farandole::sim {

struct MultiHostCounts {
  std::uint64_t partial_mispredictions = 0;  // mispredictions that only some hosts saw
  std::uint64_t replans_with_entries = 0;    // replans begun while entries were on the way
  std::uint64_t partitions_used = 0;         // partitions that delayed something
  std::uint64_t host_pauses = 0;
  std::uint64_t hosts_died = 0;      // hosts of which all workers died at once
  std::uint64_t ends_sent = 0;       // EndFrames that host parts sent
  std::uint64_t ends_received = 0;   // host parts that an EndFrame closed
  std::uint64_t ends_answered = 0;   // closed host parts that answered with an EndFrame
  std::uint64_t steps_finished = 0;  // steps that host parts finished after they were closed
  std::uint64_t steps_given_up = 0;  // steps that some host never entered

  MultiHostCounts& operator+=(const MultiHostCounts& other) {
    partial_mispredictions += other.partial_mispredictions;
    replans_with_entries += other.replans_with_entries;
    partitions_used += other.partitions_used;
    host_pauses += other.host_pauses;
    hosts_died += other.hosts_died;
    ends_sent += other.ends_sent;
    ends_received += other.ends_received;
    ends_answered += other.ends_answered;
    steps_finished += other.steps_finished;
    steps_given_up += other.steps_given_up;
    return *this;
  }
};

}  // namespace farandole::sim
