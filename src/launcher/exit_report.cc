#include "launcher/exit_report.h"

#include "base/bytes.h"
#include "rendezvous/keys.h"

namespace farandole {

void report_exit(StoreServer& store, int rank, int size, const std::string& how) {
  const auto begun = store.add(keys::formations(rank), 0);
  if (!begun.ok()) return;
  const std::string failure = how + " before all ranks had come together in init()";
  keys::MemberRecord record;
  record.failure = failure;
  ByteWriter verdict;
  verdict.put_text(failure);
  const Bytes end = verdict.take();
  // Errors are ignored: they mean that a key already has a value, which the store keeps.
  for (const std::int64_t epoch : {*begun, *begun + 1}) {
    if (epoch == 0) continue;  // the worker has not called init() yet
    (void)store.set(keys::member(epoch, rank), record.encode());
    if (!store.set(keys::complete(epoch), end).ok()) continue;
    for (int other = 0; other < size; ++other)
      (void)store.set(keys::member(epoch, other), record.encode());
  }
}

}  // namespace farandole
