// For tests: the members of one group in one process, with real flag boards, doorbells and heaps.
// Steps run either in threads that sleep on their doorbells, or in one thread in a random order
// from a seed.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "collective/chooser.h"
#include "collective/group.h"

namespace farandole {

// The size of a window: the number of bytes of a tensor that a member stages at a time.
inline constexpr auto kWindow = static_cast<std::int64_t>(kWindowBytes);

using Buffer = std::vector<std::byte>;

class GroupInTest {
 public:
  static constexpr std::size_t kHeapBytes = 64 << 20;

  explicit GroupInTest(int members)
      : doorbell_memory_(blocks_for(Doorbells::bytes_needed(members))),
        board_memory_(blocks_for(FlagBoard::bytes_needed(members))) {
    std::vector<int> ranks;
    std::vector<const PeerHeap*> heaps;
    std::vector<std::byte*> stagings;
    for (int member = 0; member < members; ++member) {
      ranks.push_back(member);
      heaps_.push_back(SharedHeap::create(kHeapBytes).value());
      staging_memory_.push_back(heaps_.back()->allocate(kStagingBytes).value());
      peer_heaps_.push_back(PeerHeap::attach(heaps_.back()->descriptor()).value());
      heaps.push_back(peer_heaps_.back().get());
      stagings.push_back(staging_memory_.back().get());
    }
    for (int member = 0; member < members; ++member) {
      const auto index = static_cast<std::size_t>(member);
      doorbells_.push_back(
          std::make_unique<Doorbells>(doorbell_memory_[0].bytes.data(), member, members));
      boards_.push_back(std::make_unique<FlagBoard>(board_memory_[0].bytes.data(), member, ranks,
                                                    *doorbells_.back()));
      groups_.push_back({.member = member,
                         .ranks = ranks,
                         .board = boards_.back().get(),
                         .stagings = stagings,
                         .heap = heaps_[index].get(),
                         .heaps = heaps,
                         .costs = costs_on(1, 1)});
    }
  }

  int members() const { return static_cast<int>(groups_.size()); }
  SharedHeap& heap(int member) { return *heaps_[static_cast<std::size_t>(member)]; }
  Doorbells& doorbells(int member) { return *doorbells_[static_cast<std::size_t>(member)]; }
  Group& group(int member) { return groups_[static_cast<std::size_t>(member)]; }

  // Runs the function for each member in a thread of its own.
  void run_in_threads(const std::function<void(int member)>& function) {
    std::vector<std::jthread> threads;
    for (int member = 0; member < members(); ++member)
      threads.emplace_back([&function, member] { function(member); });
  }

  // Advances until the step has ended, as the engine does. It sleeps after kPending. So if a step
  // returns kPending too early or does not ring a doorbell, the test fails at kSleepLimit.
  Progress finish(int member, CollectiveStep& step) {
    constexpr auto kSleepLimit = std::chrono::seconds(60);
    Doorbells& bells = *doorbells_[static_cast<std::size_t>(member)];
    const auto deadline = SystemClock().now() + kSleepLimit;
    while (SystemClock().now() < deadline) {
      Progress progress = advance(step);
      if (progress == Progress::kPending) {
        const auto ticket = bells.prepare_sleep();
        progress = advance(step);
        if (progress == Progress::kPending)
          bells.sleep(ticket, kSleepLimit);
        else
          bells.cancel_sleep();
      }
      if (progress != Progress::kPending && progress != Progress::kAdvanced) return progress;
    }
    ADD_FAILURE() << "member " << member << " waits for ever";
    return Progress::kPending;
  }

  // Runs one step of every member in one thread, in a random order. A member that is done does
  // nothing more, and the others must still finish.
  void finish_in_random_order(std::vector<CollectiveStep>& steps, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<bool> is_pending(steps.size(), false);
    std::vector<std::size_t> unfinished;
    for (std::size_t member = 0; member < steps.size(); ++member) unfinished.push_back(member);
    while (!unfinished.empty()) {
      const std::size_t chosen = random() % unfinished.size();
      const std::size_t member = unfinished[chosen];
      // One time in four, the chosen member runs as far ahead as the others allow.
      const int advances_max = random() % 4 == 0 ? 1'000'000 : 1;
      Progress progress = advance(steps[member]);
      if (progress != Progress::kPending) is_pending.assign(steps.size(), false);
      for (int count = 1; count < advances_max && progress == Progress::kAdvanced; ++count)
        progress = advance(steps[member]);
      ASSERT_TRUE(progress != Progress::kMismatch && progress != Progress::kMisprediction);
      is_pending[member] = progress == Progress::kPending;
      if (progress == Progress::kDone)
        unfinished.erase(unfinished.begin() + static_cast<long>(chosen));
      ASSERT_FALSE(all_pending(unfinished, is_pending))
          << "all unfinished members wait, seed " << seed;
      ASSERT_FALSE(progress == Progress::kPending && unfinished.size() < steps.size())
          << "member " << member << " waits, though another one is done, seed " << seed;
    }
  }

 private:
  struct alignas(kFlagLineBytes) Block {
    std::array<std::byte, kFlagLineBytes> bytes{};
  };
  static std::vector<Block> blocks_for(std::size_t bytes) {
    return std::vector<Block>((bytes + kFlagLineBytes - 1) / kFlagLineBytes);
  }
  static bool all_pending(const std::vector<std::size_t>& unfinished,
                          const std::vector<bool>& is_pending) {
    for (const std::size_t member : unfinished)
      if (!is_pending[member]) return false;
    return !unfinished.empty();
  }

  std::vector<Block> doorbell_memory_;
  std::vector<Block> board_memory_;
  std::vector<std::shared_ptr<SharedHeap>> heaps_;
  std::vector<std::shared_ptr<std::byte>> staging_memory_;  // no other object owns this memory
  std::vector<std::unique_ptr<PeerHeap>> peer_heaps_;
  std::vector<std::unique_ptr<Doorbells>> doorbells_;
  std::vector<std::unique_ptr<FlagBoard>> boards_;
  std::vector<Group> groups_;
};

inline StepIdentity step_identity(std::uint32_t sequence) {
  return {.generation = 1, .sequence = sequence, .id = 1000 + sequence};
}

// Random bytes that depend only on the seed.
inline Buffer random_bytes(std::size_t bytes, unsigned seed) {
  Buffer buffer(bytes);
  std::uint64_t state = seed;
  for (std::size_t begin = 0; begin < bytes; begin += sizeof(state)) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const std::uint64_t noise = state ^ state >> 29;
    std::memcpy(&buffer[begin], &noise, std::min(sizeof(noise), bytes - begin));
  }
  return buffer;
}

// Uses memcmp, because comparing vectors byte by byte takes minutes under the thread sanitizer.
inline bool same_bytes(const Buffer& a, const Buffer& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace farandole
