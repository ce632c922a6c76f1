#include "launcher/job_nodes.h"

#include <utility>

#include "base/host_and_port.h"
#include "base/try.h"
#include "nodes/first_node.h"
#include "nodes/other_node.h"
#include "nodes/secret_file.h"

namespace farandole {

Result<std::unique_ptr<JobNodes>> JobNodes::begin_to_join(const NodeOptions& options,
                                                          const SecretSource& source,
                                                          TimePoint now) {
  FARANDOLE_TRY_ASSIGN(JobSecret secret, source.descriptor < 0
                                             ? JobSecret::read_file(source.path)
                                             : JobSecret::read_descriptor(source.descriptor, now));
  FARANDOLE_TRY_ASSIGN(Descriptor shared_secret, share_secret(secret));
  FARANDOLE_TRY_ASSIGN(auto context, TlsContext::make(std::move(secret)));
  std::unique_ptr<JobNodes> nodes(
      new JobNodes(options, std::move(shared_secret), std::move(context)));
  if (options.node == 0) {
    FARANDOLE_TRY_ASSIGN(nodes->link_, FirstNode::create(*nodes->context_, options, now));
  } else {
    FARANDOLE_TRY_ASSIGN(nodes->link_, OtherNode::create(*nodes->context_, options, now));
  }
  return nodes;
}

NodeLayout JobNodes::layout() const {
  NodeLayout layout{.node = options_.node, .workers = {}};
  for (const std::uint32_t count : link_->start_message()->workers)
    layout.workers.push_back(static_cast<int>(count));
  return layout;
}

RendezvousAddresses JobNodes::rendezvous_addresses() const {
  const Endpoint endpoint = link_->endpoint();
  const Start& start = *link_->start_message();
  return {.job_store = endpoint.text(),
          .master_address = start.master_address.empty() ? endpoint.host : start.master_address,
          .master_port = static_cast<int>(start.master_port)};
}

// As the address of node 0, each launcher uses the one by which it has reached node 0, because the
// nodes may reach node 0 over different networks.
FrameworkAddresses JobNodes::framework_addresses() const {
  const Start& start = *link_->start_message();
  const std::string host = link_->endpoint().host;
  std::vector<std::string> addresses = start.addresses;
  if (!addresses.empty()) addresses.front() = host;
  return {.tensorflow = addresses_by_rank(layout(), addresses, start.tensorflow_ports),
          .jax = start.jax_port == 0 ? "" : host_and_port(host, start.jax_port)};
}

Result<Descriptor> JobNodes::secret_for_worker() const {
  return farandole::secret_for_worker(secret_);
}

}  // namespace farandole
