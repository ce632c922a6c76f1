#include "rendezvous/job_name.h"

#include <unistd.h>

#include <chrono>
#include <functional>
#include <utility>

#include "base/bytes.h"
#include "base/format.h"
#include "base/try.h"
#include "rendezvous/keys.h"

namespace farandole {

Result<std::string> job_name(Store& store) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  ByteWriter writer;
  writer.put_text(format_text("{}.{}", now / std::chrono::nanoseconds(1), ::getpid()));
  // The error is ignored: either another rank was first, or the error occurs again in the wait
  // below.
  static_cast<void>(store.set(keys::job_name(), writer.take()));
  const std::function<bool()> never;
  FARANDOLE_TRY_ASSIGN(const Bytes value, store.wait(keys::job_name(), {TimePoint{}, never}));
  return ByteReader(value).get_text();
}

}  // namespace farandole
