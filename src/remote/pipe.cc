#include "remote/pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/descriptor_limit.h"
#include "base/format.h"

namespace farandole {

Result<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return Status::stop(format_text("pipe2: {} ({})", std::strerror(errno), descriptor_advice()));
  return Pipe{Descriptor(ends[0]), Descriptor(ends[1])};
}

}  // namespace farandole
