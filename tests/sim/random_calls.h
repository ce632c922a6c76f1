// Random parts for scripts of all kinds: members, groups, signatures, options.
#pragma once

#include <string>
#include <vector>

#include "base/signature.h"
#include "coordination/agreement.h"
#include "random.h"
#include "script.h"

namespace farandole::sim {

int random_worker_count(Random& random);
std::vector<std::vector<int>> random_groups(Random& random, int workers);
AgreementOptions random_options(Random& random, Time delay_max);
Signature random_signature(Random& random, std::string name);
Signature random_allreduce(Random& random, std::string name);
// Returns a signature with the same name that differs in at least one other part.
Signature changed_signature(Random& random, Signature signature);
// Changes the call so that it will be rejected. Either some of its makers (Call::makers), but not
// all, submit another signature, or all of them submit a call error. There must be at least two
// makers.
void make_rejected(Random& random, Call& call);

}  // namespace farandole::sim
