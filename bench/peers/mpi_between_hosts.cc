// Times MPI_Allreduce as bench/hosts/between_hosts_worker.py times the other libraries: the mean of
// some calls on float32, without a barrier between them. Every result is checked.
//
//     mpi_between_hosts in-place|out-of-place BYTES CALLS [BYTES CALLS …]
//
// Rank 0 prints the seconds of one call for each size, as a JSON object.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

double seconds_of_call(bool in_place, std::size_t bytes, std::size_t calls, int rank, int ranks) {
  const std::size_t count = bytes / sizeof(float);
  const std::vector<float> own(count, static_cast<float>(rank + 1));
  const void* const input = in_place ? MPI_IN_PLACE : own.data();
  std::vector<std::vector<float>> tensors(calls, own);
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  for (std::vector<float>& tensor : tensors)
    MPI_Allreduce(input, tensor.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  const double seconds = (MPI_Wtime() - begin) / static_cast<double>(calls);
  const auto expected = static_cast<float>(ranks * (ranks + 1)) / 2;
  for (const std::vector<float>& tensor : tensors) {
    const bool right = std::all_of(tensor.begin(), tensor.end(),
                                   [expected](float value) { return value == expected; });
    if (right) continue;
    std::fprintf(stderr, "%zu bytes: a result is wrong\n", bytes);
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  }
  return seconds;
}

}  // namespace

int main(int count, char** words) {
  MPI_Init(&count, &words);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const bool in_place = count > 1 && std::strcmp(words[1], "in-place") == 0;
  for (const bool counts : {false, true}) {  // the first pass only warms up
    const char* separator = "{";
    for (int word = 2; word + 1 < count; word += 2) {
      const auto bytes = std::strtoull(words[word], nullptr, 10);
      const auto calls = std::strtoull(words[word + 1], nullptr, 10);
      const double seconds = seconds_of_call(in_place, bytes, calls, rank, ranks);
      if (counts && rank == 0) std::printf("%s\"%llu\": %.9f", separator, bytes, seconds);
      separator = ", ";
    }
  }
  if (rank == 0) std::printf("}\n");
  MPI_Finalize();
  return EXIT_SUCCESS;
}
