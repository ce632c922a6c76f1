// The chooser: selects the algorithm for a call. The choice depends only on values that all members
// agree on, so all choose the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>

#include "collective/allgather.h"
#include "collective/alltoall.h"
#include "collective/barrier.h"
#include "collective/broadcast.h"
#include "collective/collective_call.h"
#include "collective/group.h"
#include "collective/one_shot_allreduce.h"
#include "collective/reducescatter.h"
#include "collective/two_shot_allreduce.h"

namespace farandole {

// A running step. All algorithms keep these promises:
// - Entry barrier: no user memory is written and no member is done before all have entered.
// - When one member's step is kDone, all members have stored every flag that any member still
//   needs. So that member may leave the group immediately, and the others finish without
//   waiting for it.
// - A member may leave before its step is kDone, or a rank may die. The owner of exposed memory may
//   then have overwritten that memory. So in these cases, no member completes a step in which it
//   has read exposed memory: the step stays kPending. A step also stays kPending if the group was
//   closed before all had entered. A caller that sees the end of its group must therefore stop
//   calling advance().
// - A step that not all members have entered can be destroyed after FlagBoard::roll_back; then a
//   new step can use its slot.
// - advance() does about one window of work and never blocks. It must not be called after kDone,
//   kMisprediction or kMismatch. Only one thread at a time may call it: the holder of the progress
//   lock.
using CollectiveStep =
    std::variant<Barrier, OneShotAllreduce, TwoShotAllreduce, Broadcast, Allgather, Reducescatter,
                 Alltoall, std::unique_ptr<StepBetweenHosts>>;

// `group` is borrowed, with its scratch, and must outlive the step. For a reduction,
// check_reduction() must be ok; `splits` must fit `rows`. The call must not be a join, a send or a
// receive, because these are not steps. If the group has members on several hosts, supports() in
// hosts/start_step.h must be ok.
CollectiveStep choose_step(Group& group, const StepIdentity& identity, CollectiveCall&& call);

Progress advance(CollectiveStep& step);

// Returns the input and the output of the call if its step may let other members see them;
// otherwise nothing. The result includes all memory that the step exposes, and possibly more.
std::array<std::span<const std::byte>, 2> exposable_memory(const Group& group,
                                                           const CollectiveCall& call);

// The output memory that the other members of an entered step may write. Call this only if the
// step's entry on the board exposes an output.
std::span<const std::byte> exposed_output(const CollectiveStep& step);

}  // namespace farandole
