// Measures MPI's operations with bench/measure.cc, as collective_bench measures Farandole's. It is
// compiled once with each MPI library.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../measure.h"

namespace farandole::bench {
namespace {

#ifdef OMPI_MAJOR_VERSION
constexpr const char* kLibrary = "openmpi";
#else
constexpr const char* kLibrary = "mpich";
#endif

MPI_Datatype datatype_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return MPI_FLOAT;
    case DType::kFloat64:
      return MPI_DOUBLE;
    case DType::kInt32:
      return MPI_INT32_T;
    case DType::kInt64:
      return MPI_INT64_T;
    case DType::kUInt8:
      return MPI_UINT8_T;
    default:
      std::fprintf(stderr, "MPI has no such type\n");
      MPI_Abort(MPI_COMM_WORLD, 2);
      return MPI_BYTE;
  }
}

void call(const Shape& shape, const std::byte* input, std::byte* output, MPI_Datatype datatype) {
  const auto elements = static_cast<int>(shape.bytes / shape.element_bytes);
  const int elements_per_rank = elements / shape.ranks;
  const void* const input_or_in_place = input == output ? MPI_IN_PLACE : input;
  if (shape.operation == "allreduce") {
    MPI_Allreduce(input_or_in_place, output, elements, datatype, MPI_SUM, MPI_COMM_WORLD);
  } else if (shape.operation == "reducescatter") {
    MPI_Reduce_scatter_block(input, output, elements_per_rank, datatype, MPI_SUM, MPI_COMM_WORLD);
  } else if (shape.operation == "allgather") {
    MPI_Allgather(input, elements_per_rank, datatype, output, elements_per_rank, datatype,
                  MPI_COMM_WORLD);
  } else if (shape.operation == "alltoall") {
    MPI_Alltoall(input, elements_per_rank, datatype, output, elements_per_rank, datatype,
                 MPI_COMM_WORLD);
  } else {  // MPI only has an in-place broadcast
    MPI_Bcast(output, elements, datatype, 0, MPI_COMM_WORLD);
  }
}

SharedResults* map_shared_results(int rank, MPI_Win& window) {
  void* memory = nullptr;
  int unit = 0;
  MPI_Aint bytes = rank == 0 ? sizeof(SharedResults) : 0;
  MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
  MPI_Win_shared_query(window, 0, &bytes, &unit, &memory);
  if (rank == 0) std::memset(memory, 0, sizeof(SharedResults));
  MPI_Barrier(MPI_COMM_WORLD);
  return static_cast<SharedResults*>(memory);
}

int run(int count, char** words) {
  MPI_Init(&count, &words);
  BenchOptions options = parse_options(count, words, {.library = kLibrary});
  BenchRank bench_rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &bench_rank.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &bench_rank.ranks);
  options.in_place |= options.operation == "broadcast";
  MPI_Win window = MPI_WIN_NULL;
  bench_rank.shared_results = map_shared_results(bench_rank.rank, window);
  const MPI_Datatype datatype = datatype_of(options.dtype);
  const bool good = measure(
      options, bench_rank,
      [datatype](const Shape& shape, const std::byte* input, std::byte* output) {
        call(shape, input, output, datatype);
      },
      allocate_ordinary);
  MPI_Win_free(&window);
  MPI_Finalize();
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace farandole::bench

int main(int count, char** words) { return farandole::bench::run(count, words); }
