#include "elastic/make_elastic_node.h"

#include "base/format.h"
#include "elastic/first_elastic_node.h"
#include "elastic/other_elastic_node.h"

namespace farandole {

Result<std::unique_ptr<ElasticNode>> make_elastic_node(
    Membership::Options options, const NodeLayout& layout, StoreServer& store, NodeLink* link,
    TimePoint now, const std::optional<Replacement>& replacement) {
  std::unique_ptr<ElasticNode> elastic_node;
  if (layout.node > 0) {
    const bool has_begun = link->start_message()->has_begun;
    elastic_node = std::make_unique<OtherElasticNode>(layout, store, *link, has_begun);
    return elastic_node;
  }
  options.workers = layout.size();
  if (options.workers_min > options.workers)
    return Status::fix_call(
        format_text("--min-workers is {}, but the job has {} workers; give a "
                    "smaller number, or start more workers",
                    options.workers_min, options.workers));
  elastic_node = std::make_unique<FirstElasticNode>(options, layout, store, link, now, replacement);
  return elastic_node;
}

}  // namespace farandole
