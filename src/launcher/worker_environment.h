// The environment variables of workers: their rank and the size of the job, and how many threads
// they should use.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace farandole {

using EnvironmentVariable = std::pair<std::string, std::string>;

// The descriptors that a worker inherits beside its standard ones.
struct WorkerDescriptors {
  int rendezvous = -1;
  int flight_record = -1;  // of the memory that holds the worker's flight record
  int channel = -1;        // to the program that started the job; −1: none
};

// The variables that tell a worker its ranks and sizes in a job on one host. They override the
// inherited ones.
std::vector<EnvironmentVariable> place_of(int rank, int workers,
                                          const WorkerDescriptors& descriptors);

// The variables that all workers get unless the user has set them. `cores` is the result of
// usable_cores().
std::vector<EnvironmentVariable> defaults_for(int workers, int cores);

// Joins the lists in the form that execve needs ("NAME=value"). A later list wins over an earlier
// one.
std::vector<std::string> merge_environment(
    const std::vector<std::vector<EnvironmentVariable>>& lists);
// The environment of this process.
std::vector<EnvironmentVariable> inherited_environment();

}  // namespace farandole
