#include "rendezvous/job_name.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/bytes.h"
#include "base/format.h"
#include "base/try.h"
#include "rendezvous/keys.h"

namespace farandole {

Result<std::string> job_name(Store& store) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string name = format_text("{}.{}", now / std::chrono::nanoseconds(1), ::getpid());
  FARANDOLE_TRY_ASSIGN(const Bytes value,
                       store.set_if_new(keys::job_name(), keys::text_value(name)));
  return ByteReader(value).get_text();
}

}  // namespace farandole
