// Litmus tests: the explorer must find exactly the outcomes that x86, or partial store order,
// allows.
#include "explorer.h"

#include <gmock/gmock.h>

#include <functional>
#include <string>

namespace farandole::model {
namespace {

using testing::HasSubstr;
using Cell = ModelAtomics::Atomic<std::uint32_t>;

constexpr auto kSeqCst = std::memory_order_seq_cst;
constexpr auto kRelease = std::memory_order_release;
constexpr auto kRelaxed = std::memory_order_relaxed;

// Runs one function from its beginning to its end, without checkpoints.
class StraightLineThread final : public CopiedThread<StraightLineThread> {
 public:
  StraightLineThread(int number, std::function<void()> body)
      : number_(number), body_(std::move(body)) {}
  void write_key(ByteWriter& key) const override {
    key.put(number_);
    key.put(done_);
  }
  bool has_finished() const override { return done_; }
  void run() override {
    body_();
    done_ = true;
  }

 private:
  int number_;
  std::function<void()> body_;
  bool done_ = false;
};

class Litmus {
 public:
  Litmus() { scenario_.arena = &arena_; }

  Arena& arena() { return arena_; }
  Cell& cell(const std::string& name) {
    auto* place = reinterpret_cast<Cell*>(arena_.allocate(sizeof(Cell)));
    arena_.mark(place, name);
    return *place;
  }
  void thread(std::function<void()> body) {
    const int number = static_cast<int>(scenario_.threads.size());
    scenario_.threads.push_back(
        {.name = "t" + std::to_string(number),
         .member = number,
         .start = std::make_unique<StraightLineThread>(number, std::move(body))});
  }
  Scenario& scenario() { return scenario_; }
  Finding explore_scenario(bool partial_store_order = false) {
    return explore(scenario_, {.states_max = 100'000, .partial_store_order = partial_store_order});
  }

 private:
  Arena arena_;
  Scenario scenario_;
};

// Each thread stores its own flag, then loads the flag of the other thread. The assertion breaks if
// both threads load 0.
Verdict store_then_load(std::memory_order order) {
  Litmus litmus;
  Cell& x = litmus.cell("x");
  Cell& y = litmus.cell("y");
  const Ghost zeros(litmus.arena(), "zeros");
  const auto store_and_load = [&](Cell& own_flag, Cell& other_flag) {
    own_flag.store(1, order);
    if (other_flag.load(kSeqCst) != 0) return;
    zeros.set(zeros.get() + 1);
    require(litmus.arena(), zeros.get() < 2, "both saw zero");
  };
  litmus.thread([&] { store_and_load(x, y); });
  litmus.thread([&] { store_and_load(y, x); });
  return litmus.explore_scenario().verdict;
}

TEST(Explorer, AStoreMayPassALaterLoadUnlessItIsSequentiallyConsistent) {
  EXPECT_EQ(store_then_load(kSeqCst), Verdict::kHolds);
  EXPECT_EQ(store_then_load(kRelease), Verdict::kViolation);
  EXPECT_EQ(store_then_load(kRelaxed), Verdict::kViolation);
}

// One thread stores data, then a flag. The other thread must not see the flag without the data.
Verdict pass_message(std::memory_order order, bool partial_store_order) {
  Litmus litmus;
  Cell& data = litmus.cell("data");
  Cell& flag = litmus.cell("flag");
  litmus.thread([&] {
    data.store(7, kRelaxed);
    flag.store(1, order);
  });
  litmus.thread([&] {
    if (flag.load(kSeqCst) == 1)
      require(litmus.arena(), data.load(kRelaxed) == 7, "flag before data");
  });
  return litmus.explore_scenario(partial_store_order).verdict;
}

TEST(Explorer, StoresStayInOrderOnX86) {
  EXPECT_EQ(pass_message(kRelaxed, false), Verdict::kHolds);
  EXPECT_EQ(pass_message(kRelease, false), Verdict::kHolds);
}

TEST(Explorer, PartialStoreOrderKeepsReleasesOnly) {
  EXPECT_EQ(pass_message(kRelaxed, true), Verdict::kViolation);
  EXPECT_EQ(pass_message(kRelease, true), Verdict::kHolds);
  EXPECT_EQ(pass_message(kSeqCst, true), Verdict::kHolds);
}

TEST(Explorer, AThreadSeesItsOwnStores) {
  Litmus litmus;
  Cell& x = litmus.cell("x");
  litmus.thread([&] {
    x.store(1, kRelaxed);
    x.store(2, kRelaxed);
    require(litmus.arena(), x.load(kRelaxed) == 2, "own store lost");
  });
  EXPECT_EQ(litmus.explore_scenario().verdict, Verdict::kHolds);
  EXPECT_EQ(litmus.explore_scenario(true).verdict, Verdict::kHolds);
}

TEST(Explorer, AdditionsAreAtomic) {
  Litmus litmus;
  Cell& x = litmus.cell("x");
  const Ghost ended(litmus.arena(), "ended");
  for (int i = 0; i < 3; ++i)
    litmus.thread([&] {
      x.fetch_add(1, kSeqCst);
      ended.set(ended.get() + 1);
      if (ended.get() == 3) require(litmus.arena(), x.load(kSeqCst) == 3, "an addition was lost");
    });
  EXPECT_EQ(litmus.explore_scenario().verdict, Verdict::kHolds);
}

TEST(Explorer, AnExchangeSucceedsOnce) {
  Litmus litmus;
  Cell& x = litmus.cell("x");
  const Ghost winners(litmus.arena(), "winners");
  for (int i = 0; i < 2; ++i)
    litmus.thread([&] {
      std::uint32_t expected = 0;
      if (x.compare_exchange_strong(expected, 1, kSeqCst)) winners.set(winners.get() + 1);
      require(litmus.arena(), expected == 1 || winners.get() == 1, "two winners");
    });
  EXPECT_EQ(litmus.explore_scenario().verdict, Verdict::kHolds);
}

Finding sleep_and_wake(bool increments_bell) {
  Litmus litmus;
  Cell& bell = litmus.cell("bell");
  litmus.thread([&] { ModelAtomics::futex_wait(bell, 0, {}); });
  litmus.thread([&] {
    if (increments_bell) bell.fetch_add(1, kSeqCst);
    ModelAtomics::futex_wake(bell);
  });
  return litmus.explore_scenario();
}

TEST(Explorer, AThreadThatIsNeverWokenIsADeadlock) {
  EXPECT_EQ(sleep_and_wake(true).verdict, Verdict::kHolds);
  const Finding finding = sleep_and_wake(false);
  EXPECT_EQ(finding.verdict, Verdict::kDeadlock);
  EXPECT_EQ(finding.text, "t0 sleeps on bell");
  EXPECT_THAT(finding.trace, HasSubstr("t0 goes to sleep on bell"));
}

// A member may die before, between or after its two stores. Depending on this, the word holds 0, 1
// or 3.
TEST(Explorer, MembersDieAtAnyPoint) {
  for (const std::uint32_t possible : {0u, 1u, 3u}) {
    Litmus litmus;
    Cell& x = litmus.cell("x");
    const Ghost reaped(litmus.arena(), "reaped");
    litmus.scenario().mortal = {true, false};
    litmus.scenario().deaths_max = 1;
    litmus.scenario().reaped = {reaped, reaped};
    litmus.thread([&] {
      x.store(1, kRelaxed);
      x.store(3, kRelaxed);
    });
    litmus.thread([&] {
      reaped.await(1);
      require(litmus.arena(), x.load(kSeqCst) != possible, "this is possible");
    });
    litmus.scenario().threads[1].daemon = true;  // this thread may wait for ever for a death
    EXPECT_EQ(litmus.explore_scenario().verdict, Verdict::kViolation) << possible;
  }
}

TEST(Explorer, AReapedMemberWritesNothing) {
  Litmus litmus;
  Cell& x = litmus.cell("x");
  const Ghost reaped(litmus.arena(), "reaped");
  const Ghost returned(litmus.arena(), "returned");
  litmus.scenario().mortal = {true, false};
  litmus.scenario().deaths_max = 1;
  litmus.scenario().reaped = {reaped, reaped};
  litmus.scenario().guards = {{litmus.arena().word_of(&x), returned, 1}};
  litmus.thread([&] { x.store(1, kRelaxed); });
  litmus.thread([&] {
    reaped.await(1);
    returned.set(1);
  });
  litmus.scenario().threads[1].daemon = true;
  EXPECT_EQ(litmus.explore_scenario().verdict, Verdict::kHolds);
}

TEST(Explorer, AStoreToAGuardedWordIsAViolation) {
  Litmus litmus;
  Cell& x = litmus.cell("x");
  const Ghost returned(litmus.arena(), "returned");
  litmus.scenario().guards = {{litmus.arena().word_of(&x), returned, 1}};
  litmus.thread([&] { x.store(1, kRelaxed); });
  litmus.thread([&] { returned.set(1); });
  EXPECT_EQ(litmus.explore_scenario().text, "x was written after its owner had it back");
}

TEST(Explorer, ReportsThatItStoppedAtTheBound) {
  Litmus litmus;
  Cell& x = litmus.cell("x");
  for (int i = 0; i < 3; ++i)
    litmus.thread([&] {
      x.fetch_add(1, kSeqCst);
      x.fetch_add(1, kSeqCst);
    });
  EXPECT_EQ(explore(litmus.scenario(), {.states_max = 10}).verdict, Verdict::kBounded);
}

}  // namespace
}  // namespace farandole::model
