#include "probe/pairing.h"

namespace farandole {

// Uses the circle method for round-robin tournaments: one host keeps its seat, and after each
// round, every other host moves to the next seat. If the number of hosts is odd, all hosts move,
// and the fixed seat is empty.
std::vector<Pairs> rounds_of_pairs(std::size_t hosts) {
  if (hosts < 2) return {};
  const std::size_t seats = hosts + hosts % 2;
  const std::size_t moving_seats = seats - 1;
  std::vector<Pairs> rounds(moving_seats);
  for (std::size_t round = 0; round < moving_seats; ++round) {
    if (seats == hosts) rounds[round].emplace_back(round, moving_seats);
    for (std::size_t step = 1; step < seats / 2; ++step)
      rounds[round].emplace_back((round + step) % moving_seats,
                                 (round + moving_seats - step) % moving_seats);
  }
  return rounds;
}

}  // namespace farandole
