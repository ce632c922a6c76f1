// What scripts of all kinds are made of: members, groups, signatures, options.
#pragma once

#include <string>
#include <vector>

#include "base/signature.h"
#include "coordination/agreement.h"
#include "random.h"
#include "script.h"

namespace farandole::sim {

int random_workers(Random& random);
std::vector<std::vector<int>> random_groups(Random& random, int workers);
AgreementOptions random_options(Random& random, Time delay_max);
Signature random_signature(Random& random, std::string name);
Signature random_allreduce(Random& random, std::string name);
// Another signature for the same name; it differs for sure, in one part or in several.
Signature changed(Random& random, Signature signature);
// Some of the call's makers, not all, make something else of it. It has two makers or more.
void add_odd(Random& random, Call& call);

}  // namespace farandole::sim
