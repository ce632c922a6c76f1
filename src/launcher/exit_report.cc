#include "launcher/exit_report.h"

#include "rendezvous/keys.h"

namespace farandole {

void report_exit(StoreServer& store, int rank, const std::string& end_text) {
  const auto formations_begun = store.add(keys::formations(rank), 0);
  if (!formations_begun.ok()) return;
  const Bytes encoded =
      keys::text_value(end_text + " before all ranks had joined the job in init()");
  for (const std::int64_t epoch : {*formations_begun, *formations_begun + 1}) {
    if (epoch == 0) continue;  // the worker has not called init() yet
    // Errors are ignored: an error means that the key already has a value, which the store keeps.
    (void)store.set(keys::complete(epoch), encoded);
  }
}

}  // namespace farandole
