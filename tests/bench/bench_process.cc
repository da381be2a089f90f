// Rows about the server's process, and about batching:
//   server/page_faults_*               faults of the server for each request, steady state
//   server/page_faults_memfd           the same for 16 MiB in place in shared memory
//   server/page_faults_staged          the same for 16 MiB that the client stages
//   server/idle_processor              processor time without requests, 10 s
//   server/idle_processor_1000         the same with a thousand connections over TCP
//   server/memory_of_1000_configs      resident growth; random positions up to 10 million
//   batching/64_clients                decode tokens a second with batches against without
//   batching/idle_wait                 the time that a lone request waits in the queue
#include <dirent.h>
#include <poll.h>

#include <deque>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "rope/client.h"
#include "rope/v1/rotate.pb.h"
#include "tests/bench/library_client.h"
#include "tests/bench/measure.h"
#include "tests/bench/raw_client.h"
#include "tests/bench/servers.h"
#include "tests/bench/shared_tensor.h"
#include "tests/bench/workload.h"
#include "tests/support/process_memory.h"
#include "tests/support/test_server.h"

namespace rope::bench {
namespace {

constexpr int64_t kManyTokens = (int64_t{16} << 20) / kTokenBytes;

// Field number `field` of /proc/PID/stat, from 1.
int64_t StatField(pid_t pid, int field) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text);
  // The name (field 2) is in parentheses and may contain spaces.
  std::istringstream rest(text.substr(text.rfind(')') + 2));
  std::string value;
  for (int i = 3; i <= field; ++i) rest >> value;
  return std::stoll(value);
}

int64_t MinorFaults(pid_t pid) {
  constexpr int kMinorFaultsField = 10;
  return StatField(pid, kMinorFaultsField);
}

// Exact processor time of all threads.
double ProcessorSeconds(pid_t pid) {
  const std::string folder = absl::StrCat("/proc/", pid, "/task");
  double seconds = 0;
  DIR* const tasks = opendir(folder.c_str());
  ROPE_CHECK(tasks != nullptr);
  while (const dirent* task = readdir(tasks)) {
    int64_t nanoseconds = 0;
    std::ifstream file(absl::StrCat(folder, "/", task->d_name, "/schedstat"));
    if (file >> nanoseconds) seconds += static_cast<double>(nanoseconds) * 1e-9;
  }
  closedir(tasks);
  return seconds;
}

// Measures an idle server, so it must sleep.
void StayIdle(int milliseconds) {
  poll(nullptr, 0, milliseconds);
}

struct Faults {
  double of_request = 0;
  int64_t all = 0;
};

// The cost of `call` for the process in the steady state. The median of windows, because now and
// then a request arrives while the previous answer is still held, and then takes untouched memory.
template <typename Call>
Faults CountFaults(pid_t pid, int requests, const Call& call) {
  constexpr int kWindows = 25;
  for (int i = 0; i < requests; ++i) call();  // until the steady state
  const int of_window = requests / kWindows;
  Faults faults;
  std::vector<double> windows;
  for (int window = 0; window < kWindows; ++window) {
    const int64_t before = MinorFaults(pid);
    for (int i = 0; i < of_window; ++i) call();
    const int64_t here = MinorFaults(pid) - before;
    windows.push_back(static_cast<double>(here) / of_window);
    faults.all += here;
  }
  faults.of_request = Median(windows);
  return faults;
}

Measurement PageFaults(int64_t bytes, int requests) {
  const int64_t tokens = std::max<int64_t>(1, bytes / kTokenBytes);
  const grpc::ByteBuffer request = MakeRequest(Head(0, 10000), tokens);
  Faults worse;
  for (const Socket socket : {Socket::kUnix, Socket::kTcp}) {
    RawClient client(Target(Kind::kRope, socket));
    const Faults faults =
        CountFaults(ProcessOf(Kind::kRope), requests, [&] { client.Call(request); });
    worse.of_request = std::max(worse.of_request, faults.of_request);
    worse.all = std::max(worse.all, faults.all);
  }
  return {.value = worse.of_request,
          .unit = "1",
          .yardstick = absl::StrFormat("%d requests, the worse of Unix and TCP; %d faults in all",
                                       requests, worse.all)};
}

// Of 16 MiB in shared memory.
Measurement PageFaultsShared(const std::function<void()>& call) {
  constexpr int kRequests = 200;
  const Faults faults = CountFaults(ProcessOf(Kind::kSharedMemory), kRequests, call);
  return {.value = faults.of_request,
          .unit = "1",
          .yardstick =
              absl::StrFormat("%d requests of 16 MiB; %d faults in all", kRequests, faults.all)};
}

Measurement PageFaultsMemfd() {
  const SharedTensor tensor(client::Transport::kMemfd, kManyTokens);
  return PageFaultsShared([&] { tensor.Call(); });
}

Measurement PageFaultsStaged() {
  const Workload memory(kManyTokens, kernels::DType::kBFloat16, kernels::Pairing::kHalf);
  const client::Client client = ConnectClient(Target(Kind::kSharedMemory, Socket::kUnix));
  const client::RotateRequest request =
      LibraryRequest(kManyTokens, memory.input(), memory.output());
  return PageFaultsShared([&] { ROPE_CHECK(client.Rotate(request).ok()); });
}

Measurement IdleProcessor(Socket socket, int connections) {
  constexpr int kSeconds = 10;
  std::deque<RawClient> idle;
  for (int i = 0; i < connections; ++i) {
    idle.emplace_back(Target(Kind::kRope, socket)).Call(MakeRequest(Head(0, 10000), 1));
  }
  StayIdle(100);  // lets the work after the last answer end
  const pid_t pid = ProcessOf(Kind::kRope);
  const double before = ProcessorSeconds(pid);
  StayIdle(kSeconds * 1000);
  const double used = ProcessorSeconds(pid) - before;
  return {.value = used / kSeconds * 100,
          .unit = "%",
          .yardstick =
              absl::StrFormat("%.3f ms in %d s, clients: %d", used * 1e3, kSeconds, connections)};
}

Measurement MemoryOfConfigs() {
  constexpr int64_t kBudgetMebibytes = 256;  // as shipped
  constexpr int kRounds = 10;
  testing::TestServer server(
      {"--log_level=warn", absl::StrCat("--table_cache_bytes=", kBudgetMebibytes << 20)});
  const auto resident = [&] {
    return static_cast<double>(testing::ResidentBytes(server.process().pid())) / (1 << 20);
  };
  RawClient client(server.address());
  for (int i = 0; i < 1000; ++i) client.Call(MakeRequest(Head(0, 10000), 1));
  const double before = resident();
  std::mt19937_64 random(7);
  std::uniform_int_distribution<int64_t> position(0, 10'000'000);
  for (int i = 0; i < kRounds * 1000; ++i) {
    client.Call(MakeRequest(Head(position(random), 10000 + i % 1000), 1));
  }
  const double grown = resident() - before;
  return {.value = grown,
          .unit = "MiB",
          .yardstick =
              absl::StrFormat("budget %d MiB, %d positions of each", kBudgetMebibytes, kRounds),
          .ratio = grown / static_cast<double>(kBudgetMebibytes)};
}

Measurement Batching() {
  constexpr int kClients = 64;
  constexpr int kRounds = 9;
  constexpr double kSeconds = 0.5;
  const grpc::ByteBuffer request = MakeRequest(Head(1000, 10000), 1);
  const auto rate_of = [&request](Kind server) {
    return RawCallRate(Target(server, Socket::kUnix), request, kClients, kSeconds);
  };
  const Rates rates = InTurns(
      kRounds, [&] { return rate_of(Kind::kBatching); },
      [&] { return rate_of(Kind::kNoBatching); });
  return {.value = Median(rates.rope),
          .unit = "1/s",
          .yardstick = absl::StrFormat("batches of one %.0f 1/s", Median(rates.echo)),
          .ratio = Median(rates.ratios)};
}

Measurement IdleWait() {
  RawClient client(Target(Kind::kRope, Socket::kUnix));
  const grpc::ByteBuffer request = MakeRequest(Head(1000, 10000), 1);
  std::vector<double> waits;
  for (int i = 0; i < 1000; ++i) {
    grpc::ByteBuffer bytes;
    client.Call(request, &bytes);
    grpc::Slice slice;
    ROPE_CHECK(bytes.DumpToSingleSlice(&slice).ok());
    v1::RotateResponse reply;
    ROPE_CHECK(reply.ParseFromArray(slice.begin(), static_cast<int>(slice.size())));
    waits.push_back(reply.stage_times().queue_us());
  }
  return {.value = Median(waits), .unit = "us", .yardstick = "median of 1000 lone decode tokens"};
}

}  // namespace

std::vector<Row> ProcessRows() {
  return {
      {"server/page_faults_decode_token", "<= 0", [] { return PageFaults(1, 5000); }},
      {"server/page_faults_1MiB", "<= 0", [] { return PageFaults(1 << 20, 500); }},
      {"server/page_faults_16MiB", "<= 0", [] { return PageFaults(16 << 20, 100); }},
      {"server/page_faults_memfd", "<= 0", PageFaultsMemfd},
      {"server/page_faults_staged", "<= 0", PageFaultsStaged},
      {"server/idle_processor", "<= 0.1", [] { return IdleProcessor(Socket::kUnix, 1); }},
      {"server/idle_processor_1000", "<= 0.1", [] { return IdleProcessor(Socket::kTcp, 1000); }},
      {"server/memory_of_1000_configs", "<= 1.1", MemoryOfConfigs},
      {"batching/64_clients", ">= 0.95", Batching},
      {"batching/idle_wait", "<= 0", IdleWait},
  };
}

}  // namespace rope::bench
