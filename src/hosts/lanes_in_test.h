// For tests: lanes in memory. Entries and bytes move only when the test calls move(), after a
// random time and in random pieces. So the counts of a lane grow only between calls of advance().
// The lanes access borrowed memory at the last moment that the interface allows. So a step that
// reuses borrowed memory too early gets wrong results.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "collective/lane.h"

namespace farandole {

struct NetworkOptions {
  std::size_t bytes_per_move = 1 << 20;  // limit for a stream in one move()
  std::size_t wire_bytes = 1 << 20;      // limit for the unreceived bytes of a stream
};

class LanesInTest {
 public:
  LanesInTest(int hosts, int lanes, NetworkOptions options) : options_(options) {
    for (int host = 0; host < hosts; ++host) {
      auto& row = lanes_.emplace_back();
      for (int index = 0; index < lanes; ++index)
        row.push_back(std::make_unique<LaneInTest>(*this, host, hosts));
    }
  }

  // Null if there is no such lane.
  Lane* lane(int host, int index) {
    auto& row = lanes_[static_cast<std::size_t>(host)];
    return static_cast<std::size_t>(index) < row.size() ? row[static_cast<std::size_t>(index)].get()
                                                        : nullptr;
  }
  std::uint64_t bytes_sent(int host) { return bytes_sent_[host]; }
  std::size_t entries_sent() const { return entries_sent_; }

  // Moves some entries and some bytes of some streams. Returns false if there is nothing to move.
  bool move(std::mt19937& random) {
    bool may_move = false;
    for (std::size_t index = 0; index < entries_.size();) {
      may_move = true;
      if (random() % 2 == 0) {
        ++index;
        continue;
      }
      Entry& entry = entries_[index];
      notes_[{entry.to, entry.from, entry.step.generation, entry.step.sequence}] = {
          entry.step.id, std::move(entry.note)};
      entries_.erase(entries_.begin() + static_cast<long>(index));
    }
    for (auto& row : lanes_)
      for (std::size_t index = 0; index < row.size(); ++index)
        for (std::size_t to = 0; to < lanes_.size(); ++to)
          may_move = move_stream(random, *row[index], *lanes_[to][index]) || may_move;
    return may_move;
  }

 private:
  struct Entry {
    int from = 0;
    int to = 0;
    StepIdentity step;
    std::vector<std::byte> note;
  };
  struct Note {
    std::uint64_t id = 0;
    std::vector<std::byte> bytes;
  };
  struct Packet {
    StepIdentity step;
    std::vector<std::byte> bytes;
    std::size_t received_bytes = 0;
  };
  struct Stream {
    std::deque<std::span<const std::byte>> to_send;
    std::deque<Packet> wire;
    std::size_t bytes_on_wire = 0;
    std::deque<std::span<std::byte>> to_receive;
    std::uint64_t sent_bytes = 0;
    std::uint64_t received_bytes = 0;
  };

  class LaneInTest final : public Lane {
   public:
    LaneInTest(LanesInTest& network, int host, int hosts)
        : network_(network), host_(host), streams_(static_cast<std::size_t>(hosts)) {}

    void send_entry(const StepIdentity& step, std::span<const std::byte> note) override {
      EXPECT_LE(note.size(), kNoteBytesMax);
      ++network_.entries_sent_;
      for (int to = 0; to < static_cast<int>(streams_.size()); ++to)
        if (to != host_) network_.entries_.push_back({host_, to, step, {note.begin(), note.end()}});
    }
    std::optional<HostEntry> entry(int host, const StepIdentity& step) const override {
      EXPECT_NE(host, host_);
      const auto note = network_.notes_.find({host_, host, step.generation, step.sequence});
      if (note == network_.notes_.end()) return std::nullopt;
      return HostEntry{note->second.id, note->second.bytes};
    }
    void begin(const StepIdentity& step) override {
      for (Stream& stream : streams_) {
        EXPECT_TRUE(stream.to_send.empty() && stream.to_receive.empty())
            << "data of the step before has not moved";
        stream.sent_bytes = stream.received_bytes = 0;
      }
      step_ = step;
    }
    void send(int host, std::span<const std::byte> bytes) override {
      EXPECT_FALSE(bytes.empty());
      stream(host).to_send.push_back(bytes);
      network_.bytes_sent_[host_] += bytes.size();
    }
    void receive(int host, std::span<std::byte> into) override {
      EXPECT_FALSE(into.empty());
      stream(host).to_receive.push_back(into);
    }
    std::uint64_t bytes_sent(int host) const override { return stream(host).sent_bytes; }
    std::uint64_t bytes_received(int host) const override { return stream(host).received_bytes; }

    Stream& stream(int host) {
      EXPECT_NE(host, host_) << "there is no stream to our own host";
      return streams_[static_cast<std::size_t>(host)];
    }
    const Stream& stream(int host) const { return streams_[static_cast<std::size_t>(host)]; }
    int host() const { return host_; }
    const StepIdentity& step() const { return step_; }

   private:
    LanesInTest& network_;
    int host_;
    std::vector<Stream> streams_;
    StepIdentity step_{};
  };

  bool move_stream(std::mt19937& random, LaneInTest& from, LaneInTest& to) {
    if (&from == &to) return false;
    Stream& out_stream = from.stream(to.host());
    Stream& in_stream = to.stream(from.host());
    const bool can_receive = !out_stream.wire.empty() && !in_stream.to_receive.empty() &&
                             out_stream.wire.front().step.sequence == to.step().sequence &&
                             out_stream.wire.front().step.generation == to.step().generation;
    const bool can_send =
        !out_stream.to_send.empty() && out_stream.bytes_on_wire < options_.wire_bytes;
    if (can_send && random() % 2 == 0) put_on_wire(random, out_stream, from.step());
    if (can_receive && random() % 2 == 0) take_from_wire(random, out_stream, in_stream, to.step());
    return can_receive || can_send;
  }
  std::size_t random_byte_count(std::mt19937& random) const {
    return 1 + random() % options_.bytes_per_move;
  }

  void put_on_wire(std::mt19937& random, Stream& out_stream, const StepIdentity& step) const {
    std::size_t bytes_left =
        std::min(random_byte_count(random), options_.wire_bytes - out_stream.bytes_on_wire);
    while (bytes_left > 0 && !out_stream.to_send.empty()) {
      auto& front = out_stream.to_send.front();
      const auto bytes = front.first(std::min(bytes_left, front.size()));
      out_stream.wire.push_back({step, {bytes.begin(), bytes.end()}});
      out_stream.bytes_on_wire += bytes.size();
      out_stream.sent_bytes += bytes.size();
      bytes_left -= bytes.size();
      front = front.subspan(bytes.size());
      if (front.empty()) out_stream.to_send.pop_front();
    }
  }
  void take_from_wire(std::mt19937& random, Stream& out_stream, Stream& in_stream,
                      const StepIdentity& step) const {
    std::size_t bytes_left = random_byte_count(random);
    while (bytes_left > 0 && !out_stream.wire.empty() && !in_stream.to_receive.empty() &&
           out_stream.wire.front().step.sequence == step.sequence) {
      Packet& packet = out_stream.wire.front();
      auto& into = in_stream.to_receive.front();
      const std::size_t bytes =
          std::min({bytes_left, packet.bytes.size() - packet.received_bytes, into.size()});
      std::memcpy(into.data(), &packet.bytes[packet.received_bytes], bytes);
      packet.received_bytes += bytes;
      out_stream.bytes_on_wire -= bytes;
      in_stream.received_bytes += bytes;
      bytes_left -= bytes;
      into = into.subspan(bytes);
      if (into.empty()) in_stream.to_receive.pop_front();
      if (packet.received_bytes == packet.bytes.size()) out_stream.wire.pop_front();
    }
  }

  NetworkOptions options_;
  std::vector<std::vector<std::unique_ptr<LaneInTest>>> lanes_;  // by host and index
  std::deque<Entry> entries_;                                    // sent, but not received yet
  std::map<std::tuple<int, int, std::uint32_t, std::uint32_t>, Note> notes_;
  std::map<int, std::uint64_t> bytes_sent_;  // by host
  std::size_t entries_sent_ = 0;
};

}  // namespace farandole
