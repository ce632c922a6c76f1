// Makes the launcher's part in an elastic job.
#pragma once

#include <memory>
#include <optional>

#include "elastic/elastic_node.h"
#include "farandole/status.h"
#include "membership/membership.h"
#include "nodes/node_layout.h"
#include "nodes/node_options.h"
#include "rendezvous/store_server.h"

namespace farandole {

// `link` is null if the job is on this host only; otherwise its start_message() must be set.
// `options.workers` may be unset. `replacement` has the same meaning as NodeOptions::replaces.
// `store` and `link` must outlive the result. Errors: kFixCall if the job has too few workers.
Result<std::unique_ptr<ElasticNode>> make_elastic_node(
    Membership::Options options, const NodeLayout& layout, StoreServer& store, NodeLink* link,
    TimePoint now, const std::optional<Replacement>& replacement);

}  // namespace farandole
