#include "launcher/agent.h"

#include <cstdio>
#include <utility>

#include "base/poller.h"
#include "launcher/agent_loop.h"
#include "rendezvous/store_server.h"

namespace farandole {

int run_agent(const AgentSetup& setup) {
  auto poller = Poller::create();
  auto store = StoreServer::create("the launcher");
  if (!poller.ok() || !store.ok()) {
    const Status& failure = poller.ok() ? store.status() : poller.status();
    std::fprintf(stderr, "farandole: cannot start the job: %s (look at `ulimit -n`)\n",
                 failure.message().c_str());
    return 1;
  }
  Agent agent(setup, std::move(poller).value(), std::move(store).value());
  return agent.run();
}

}  // namespace farandole
