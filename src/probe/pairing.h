// Pairing: the order in which pairs of hosts are measured, so that no host takes part in two
// measurements at the same time. A pure function.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace farandole {

// Returns rounds. In a round, each host meets at most one other host. In all rounds together, each
// pair meets once (the circle method for tournaments). With n hosts, there are n − 1 rounds if n is
// even, otherwise n.
using Pairs = std::vector<std::pair<std::size_t, std::size_t>>;
std::vector<Pairs> rounds_of_pairs(std::size_t hosts);

}  // namespace farandole
