#include "driver/passed_environment.h"

#include <algorithm>
#include <array>

namespace farandole {
namespace {

constexpr std::array<std::string_view, 16> kNames{"PATH",
                                                  "LD_LIBRARY_PATH",
                                                  "LD_PRELOAD",
                                                  "VIRTUAL_ENV",
                                                  "CONDA_PREFIX",
                                                  "CONDA_DEFAULT_ENV",
                                                  "GLIBC_TUNABLES",
                                                  "LANG",
                                                  "LANGUAGE",
                                                  "TZ",
                                                  "NO_COLOR",
                                                  "CUDA_VISIBLE_DEVICES",
                                                  "CUDA_HOME",
                                                  "CUBLAS_WORKSPACE_CONFIG",
                                                  "TOKENIZERS_PARALLELISM",
                                                  "WANDB_MODE"};

constexpr std::array<std::string_view, 26> kBeginnings{
    "FARANDOLE_", "HOROVOD_",      "PYTHON",  "OMP_",        "GOMP_",    "KMP_",  "MKL_",
    "OPENBLAS_",  "NUMEXPR_",      "MALLOC_", "TORCH",       "PYTORCH_", "TF_",   "XLA_",
    "JAX_",       "KERAS_",        "MXNET_",  "DMLC_",       "NCCL_",    "GLOO_", "UCX_",
    "FI_",        "TRANSFORMERS_", "HF_",     "ACCELERATE_", "LC_"};

}  // namespace

bool is_passed_on(std::string_view name) {
  return std::ranges::find(kNames, name) != kNames.end() ||
         std::ranges::any_of(kBeginnings,
                             [&](std::string_view start) { return name.starts_with(start); });
}

std::vector<std::string> passed_environment(const std::vector<std::string>& lines) {
  std::vector<std::string> passed;
  for (const std::string& line : lines) {
    const auto equals_sign = line.find('=');
    if (equals_sign != std::string::npos &&
        is_passed_on(std::string_view(line).substr(0, equals_sign)))
      passed.push_back(line);
  }
  return passed;
}

}  // namespace farandole
