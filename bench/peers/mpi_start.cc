// The MPI program that bench/hosts/start.py compares with bench/start_bench.cc.
#include <mpi.h>

#include <chrono>
#include <cstdio>

int main(int count, char** arguments) {
  MPI_Init(&count, &arguments);
  MPI_Barrier(MPI_COMM_WORLD);
  const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (rank == 0) std::printf("%d ranks met at %.6f\n", size, now.count());
  MPI_Finalize();
}
