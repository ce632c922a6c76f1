#include "doctor/doctor_frameworks.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/descriptor.h"
#include "base/format.h"
#include "base/process_end.h"
#include "launcher/stack_capture.h"
#include "workers/python_choice.h"

namespace farandole {
namespace {

constexpr const char* kGpuTensorNote = "tensors on GPUs go through host memory";

using VersionCall = int (*)(int*);

// Asks a library for its version through a function `int call(int*)`, which returns 0 on success.
Finding finding_on_library(const char* library, const char* call, std::string (*text)(int)) {
  void* handle = ::dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr)
    return {Health::kNotInstalled, format_text("{}; {}", ::dlerror(), kGpuTensorNote), ""};
  const auto version_function = reinterpret_cast<VersionCall>(::dlsym(handle, call));
  int number = 0;
  if (version_function == nullptr || version_function(&number) != 0)
    return {Health::kDoesNotWork,
            format_text("{} loads, but {} fails; {}", library, call, kGpuTensorNote), ""};
  return {Health::kWorks, format_text("{}: version {}; {}", library, text(number), kGpuTensorNote),
          ""};
}

// The number 12040 is CUDA 12.4.
Finding check_cuda() {
  return finding_on_library("libcuda.so.1", "cuDriverGetVersion", [](int number) {
    return format_text("{}.{}", number / 1000, number % 1000 / 10);
  });
}

// The number 22005 is NCCL 2.20.5.
Finding check_nccl() {
  return finding_on_library("libnccl.so.2", "ncclGetVersion", [](int number) {
    return format_text("{}.{}.{}", number / 10000, number % 10000 / 100, number % 100);
  });
}

struct EndedProgram {
  int status = 0;  // from waitpid()
  std::string output;
  std::string errors;
};

std::string content_of(const Descriptor& file) {
  std::string text(static_cast<std::size_t>(std::max<off_t>(0, ::lseek(file.get(), 0, SEEK_END))),
                   '\0');
  const ssize_t count = ::pread(file.get(), text.data(), text.size(), 0);
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return text;
}

EndedProgram program_not_started(const char* call) {
  return {126 << 8, "", format_text("{}: {}", call, ::strerror(errno))};
}

// Runs a program from PATH to its end. Exit code 127 means that the program does not exist, and 126
// that it could not be started.
EndedProgram run_program(const std::vector<const char*>& words) {
  const Descriptor output(::memfd_create("output", MFD_CLOEXEC));
  const Descriptor errors(::memfd_create("errors", MFD_CLOEXEC));
  if (!output.valid() || !errors.valid()) return program_not_started("memfd_create");
  std::vector<char*> arguments;
  for (const char* word : words) arguments.push_back(const_cast<char*>(word));
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(output.get(), STDOUT_FILENO);
    ::dup2(errors.get(), STDERR_FILENO);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  EndedProgram program;
  if (child < 0 || ::waitpid(child, &program.status, 0) != child)
    return program_not_started("fork");
  program.output = content_of(output);
  program.errors = content_of(errors);
  return program;
}

bool is_missing(const EndedProgram& program) {
  return WIFEXITED(program.status) && WEXITSTATUS(program.status) == 127;
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

std::string failure_text(const EndedProgram& program) {
  if (program.status == 0) return "it does not answer as Python does";
  if (WIFSIGNALED(program.status)) return "killed by " + signal_name(WTERMSIG(program.status));
  return format_text("exit code {}: {}", WEXITSTATUS(program.status), last_line(program.errors));
}

struct FrameworkRow {
  const char* name;
  const char* distributions;  // names in the package index, separated by spaces
  const char* frontend;       // the name of our frontend for this framework
};
constexpr std::array<FrameworkRow, 7> kFrameworks{{
    {"torch", "torch", "torch"},
    {"tensorflow", "tensorflow tensorflow-cpu tf-nightly", "tensorflow"},
    {"keras", "keras", "keras"},
    {"jax", "jax", "jax"},
    {"mxnet", "mxnet", "mxnet"},
    {"pyspark", "pyspark", "spark"},
    {"ray", "ray", "ray"},
}};

// Python runs this program with the same sys.path as `python3 script.py`, except for the script's
// folder.
constexpr const char* kPythonProgram = R"(
import sys
if sys.path and sys.path[0] == "":
    del sys.path[0]
import importlib.metadata, json, pkgutil

def version(names):
    for name in names.split():
        try:
            return importlib.metadata.version(name) or "unknown"
        except importlib.metadata.PackageNotFoundError:
            pass
    return ""

answer = {
    "path": sys.executable,
    "python": sys.version.split()[0],
    "versions": {name: version(name) for name in sys.argv[1:]},
    "farandole": version("farandole"),
    "folders": [],
    "error": "",
}
if answer["farandole"]:
    try:
        import farandole
        modules = pkgutil.iter_modules(farandole.__path__)
        answer["folders"] = [module.name for module in modules if module.ispkg]
    except BaseException as error:
        answer["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(answer))
)";

using Json = nlohmann::json;

bool has_frontend(const Json& answer, const FrameworkRow& row) {
  const auto& folders = answer["folders"];
  return std::find(folders.begin(), folders.end(), Json(row.frontend)) != folders.end();
}

Finding finding_on_python(const Json& answer, const PythonChoice& choice) {
  const std::string found = format_text("{} at {}", answer["python"].get<std::string>(),
                                        answer["path"].get<std::string>());
  const auto version = answer["python"].get<std::string>();
  if (choice.other_path.empty()) return {Health::kWorks, found, "", version};
  return {Health::kWorks,
          format_text("{}, in the folder of this command; PATH has {}", found, choice.other_path),
          "", version};
}

Finding finding_on_package(const Json& answer) {
  const auto version = answer["farandole"].get<std::string>();
  const auto error = answer["error"].get<std::string>();
  const auto path = answer["path"].get<std::string>();
  if (version.empty())
    return {
        Health::kNotInstalled, "this Python has no package farandole",
        format_text("install it with `{} -m pip`, or activate the environment that has it", path)};
  if (!error.empty())
    return {Health::kDoesNotWork, format_text("{}; import farandole: {}", version, error),
            "install it again", version};
  std::string frontends;
  for (const FrameworkRow& row : kFrameworks)
    if (has_frontend(answer, row))
      frontends += std::string(frontends.empty() ? "" : ", ") + row.frontend;
  return {Health::kWorks, format_text("{}, with frontends: {}", version, frontends), "", version};
}

Finding finding_on_framework(const Json& answer, const FrameworkRow& row) {
  const auto version = answer["versions"][row.distributions].get<std::string>();
  const std::string frontend = row.frontend;
  if (version.empty()) return {Health::kNotInstalled, "not in this Python", ""};
  if (has_frontend(answer, row))
    return {Health::kWorks, format_text("{}: import farandole.{}", version, frontend), "", version};
  if (!answer["farandole"].get<std::string>().empty())
    return {Health::kLimited, version + ": there is no frontend for it yet", "", version};
  return {Health::kLimited, version + ": this Python has no package farandole", "", version};
}

std::vector<Finding> check_python() {
  std::vector<Finding> findings(kFrameworks.size() + 2,
                                Finding{Health::kNotInstalled, "python3 was not found", ""});
  const PythonChoice choice = choose_python("python3");
  std::vector<const char*> words{choice.program.c_str(), "-c", kPythonProgram};
  for (const FrameworkRow& row : kFrameworks) words.push_back(row.distributions);
  const EndedProgram program = run_program(words);
  const Json answer = Json::parse(program.output, nullptr, false);
  if (is_missing(program)) {
    findings[0] = {Health::kNotInstalled,
                   "python3 is neither in the folder of this command nor in PATH",
                   "jobs of other programs can run; for Python, activate its environment"};
    return findings;
  }
  if (program.status != 0 || !answer.is_object()) {
    const Finding failure{Health::kDoesNotWork, "python3: " + failure_text(program), ""};
    std::fill(findings.begin(), findings.end(), failure);
    return findings;
  }
  findings[0] = finding_on_python(answer, choice);
  findings[1] = finding_on_package(answer);
  for (std::size_t i = 0; i < kFrameworks.size(); ++i)
    findings[i + 2] = finding_on_framework(answer, kFrameworks[i]);
  return findings;
}

// Checks the py-spy that the launcher would run.
Finding check_py_spy() {
  const std::string path = find_py_spy();
  if (path.empty())
    return {Health::kNotInstalled, "py-spy is neither in PATH nor in the folder of this command",
            "`pip install py-spy` to see where a worker hangs: `py-spy dump --pid PID`"};
  const EndedProgram program = run_program({path.c_str(), "--version"});
  if (program.status != 0) return {Health::kDoesNotWork, "py-spy: " + failure_text(program), ""};
  return {Health::kWorks, last_line(program.output), ""};
}

}  // namespace

Check python_check() {
  Check check{{"python3", "farandole for Python"}, false, check_python};
  for (const FrameworkRow& row : kFrameworks) check.names.emplace_back(row.name);
  return check;
}

std::vector<Check> framework_checks() {
  return {python_check(), single_check("py-spy", false, check_py_spy),
          single_check("CUDA driver", false, check_cuda), single_check("NCCL", false, check_nccl)};
}

}  // namespace farandole
