#include "nodes/secret_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/format.h"
#include "base/try.h"
#include "base/visible_text.h"

namespace farandole {
namespace {

Status sharing_error(const char* call) {
  return Status::stop(format_text("cannot hand the job's secret to the workers: {}: {}", call,
                                  std::strerror(errno)));
}

Status file_error(const std::string& path, const char* hint) {
  return Status::fix_call(format_text("cannot make the file '{}': {}{}", escape_controls(path),
                                      std::strerror(errno), hint));
}

}  // namespace

Status make_secret_file(const std::string& path) {
  FARANDOLE_TRY_ASSIGN(const JobSecret secret, JobSecret::generate());
  // O_EXCL: a secret that a running job uses must not be replaced, and a link must not be followed.
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid())
    return file_error(
        path, errno == EEXIST ? "; choose another name, or remove it if no job uses it" : "");
  // fchmod(): an unusual umask must not make the file unreadable for its owner.
  Status status =
      ::fchmod(file.get(), 0600) == 0 ? secret.write_to(file.get()) : file_error(path, "");
  if (status.ok() && ::fsync(file.get()) != 0 && errno != EINVAL) status = file_error(path, "");
  if (!status.ok()) ::unlink(path.c_str());
  return status;
}

Result<Descriptor> share_secret(const JobSecret& secret) {
  Descriptor memory = Descriptor::above_standard_streams(
      ::memfd_create("farandole-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) return sharing_error("memfd_create");
  FARANDOLE_TRY(secret.write_to(memory.get()));
  const int seals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (::fchmod(memory.get(), 0400) != 0) return sharing_error("fchmod");
  if (::fcntl(memory.get(), F_ADD_SEALS, seals) != 0) return sharing_error("F_ADD_SEALS");
  return memory;
}

Result<Descriptor> secret_for_worker(const Descriptor& shared_secret) {
  const std::string path = "/proc/self/fd/" + std::to_string(shared_secret.get());
  Descriptor own_descriptor =
      Descriptor::above_standard_streams(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!own_descriptor.valid()) return sharing_error("open");
  return own_descriptor;
}

}  // namespace farandole
