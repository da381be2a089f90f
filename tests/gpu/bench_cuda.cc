// rope_bench_cuda [--smoke] [--filter=REGEX] [--json_file=FILE]: measures kernels and calls on the
// first GPU and prints one table; each row is appended to FILE as a line of JSON, as soon as it is
// measured. --smoke only creates the cuda backend, which runs each kernel once and checks the
// results, and prints what it is or why there is none.
//
// Exits 0 whether or not the bars hold; 1 on a wrong rotation or a CUDA error; 2 on a flag that it
// does not know; 77 without a device.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/backends.h"
#include "tests/gpu/device.h"
#include "tests/gpu/report.h"

namespace {

constexpr int kSkipped = 77;

struct Flags {
  bool help = false;
  bool smoke = false;
  std::string filter;
  std::string json_file;
};

std::optional<Flags> ParseFlags(int argc, char** argv) {
  constexpr std::string_view kFilter = "--filter=";
  constexpr std::string_view kJsonFile = "--json_file=";
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "-h" || argument == "--help") {
      flags.help = true;
    } else if (argument == "--smoke") {
      flags.smoke = true;
    } else if (argument.substr(0, kFilter.size()) == kFilter) {
      flags.filter = argument.substr(kFilter.size());
    } else if (argument.substr(0, kJsonFile.size()) == kJsonFile) {
      flags.json_file = argument.substr(kJsonFile.size());
    } else {
      return std::nullopt;
    }
  }
  return flags;
}

void PrintDevice() {
  const cudaDeviceProp& device = rope::bench::Device();
  int driver = 0;
  int runtime = 0;
  rope::bench::Check(cudaDriverGetVersion(&driver), "the driver's version");
  rope::bench::Check(cudaRuntimeGetVersion(&runtime), "the runtime's version");
  std::printf("device: %s, compute %d.%d, %d multiprocessors, L2 %.1f MiB, memory %.1f GiB\n",
              device.name, device.major, device.minor, device.multiProcessorCount,
              static_cast<double>(device.l2CacheSize) / (1 << 20),
              static_cast<double>(device.totalGlobalMem) / (1 << 30));
  std::printf("CUDA: driver for %d.%d, runtime %d.%d\n", driver / 1000, driver % 1000 / 10,
              runtime / 1000, runtime % 1000 / 10);
}

int Smoke() {
  const auto backend = rope::kernels::CreateBackend("cuda", {});
  std::printf("%s\n",
              backend.ok() ? (*backend)->detail().c_str() : backend.status().ToString().c_str());
  return backend.ok() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::optional<Flags> flags = ParseFlags(argc, argv);
  if (!flags.has_value() || flags->help) {
    std::fprintf(flags.has_value() ? stdout : stderr,
                 "usage: rope_bench_cuda [--smoke] [--filter=REGEX] [--json_file=FILE]\n");
    return flags.has_value() ? 0 : 2;
  }
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::printf("rope_bench_cuda: no device (%s)\n", cudaGetErrorString(error));
    return kSkipped;
  }
  PrintDevice();
  if (flags->smoke) return Smoke();
  std::ofstream file(flags->json_file.empty() ? "/dev/null" : flags->json_file, std::ios::app);
  const int wrong = rope::bench::RunRows(rope::bench::DeviceRows(), flags->filter, file);
  if (!file) {
    std::fprintf(stderr, "rope_bench_cuda: cannot write %s\n", flags->json_file.c_str());
    return 1;
  }
  return wrong > 0 ? 1 : 0;
}
