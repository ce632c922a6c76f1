// GroupSpy: for tests, a LocalStore that keeps the shared segment of the world's group, so that the
// test can read it. Ranks that are threads share this Store.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collective/group_memory.h"
#include "engine/job_in_test.h"
#include "rendezvous/memory_store.h"
#include "transport/shm/segment.h"

namespace farandole {

class GroupSpy final : public LocalStore {
 public:
  explicit GroupSpy(int members) : members_(members) {}

  Status share(const std::string& key, LocalValue value) override {
    if (key.ends_with("/group/0"))
      segment_ = *Segment::attach(value.descriptors.at(0), GroupMemory::bytes_needed(members_));
    return store_.share(key, std::move(value));
  }
  Result<LocalValues> receive_all(const std::vector<std::string>& keys, const std::string& end_key,
                                  const WaitLimit& limit) override {
    return store_.receive_all(keys, end_key, limit);
  }
  Result<std::int64_t> add(const std::string& key, std::int64_t delta) override {
    return store_.add(key, delta);
  }
  Status remove_all(const std::vector<std::string>& keys) override {
    return store_.remove_all(keys);
  }
  Result<TimePoint> clock() override { return store_.clock(); }

  // The bytes of all control messages that the members have sent so far.
  std::uint64_t message_bytes() const {
    const GroupMemory memory(segment_->data(), members_);
    std::uint64_t sum = 0;
    for (int member = 1; member < members_; ++member)
      sum += bytes_written(memory.ring_to_leader(member)) +
             bytes_written(memory.ring_from_leader(member));
    return sum;
  }
  // How many steps the first member has entered. Call it only while no step runs.
  std::uint32_t step_count() const {
    const auto* const lines =
        reinterpret_cast<const FlagBoard::Line*>(GroupMemory(segment_->data(), members_).board());
    std::uint32_t last_entry = 0;
    for (std::uint32_t slot = 0; slot < kSlots; ++slot)
      last_entry = std::max(
          last_entry, static_cast<std::uint32_t>(lines[slot].word.load(std::memory_order_seq_cst)));
    return last_entry;
  }

 private:
  static std::uint64_t bytes_written(std::byte* ring) {
    return reinterpret_cast<MessageRing::Position*>(ring)->bytes.load(std::memory_order_seq_cst);
  }

  MemoryStore store_;
  int members_;
  std::shared_ptr<Segment> segment_;  // shared with the engines
};

// Runs body(engine, spy) on `size` threads, each with its own engine of one job.
template <class Body>
void run_spied_job(int size, std::size_t bucket_bytes, Body body) {
  const auto spy = std::make_shared<GroupSpy>(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      auto options = options_of(rank, size);
      options.bucket_bytes = bucket_bytes;
      const auto engine = value_or_abort(assemble(options, spy));
      body(*engine, *spy);
    });
  for (auto& thread : threads) thread.join();
}

}  // namespace farandole
