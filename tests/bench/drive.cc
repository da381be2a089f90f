// The client processes of rope_bench.
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "rope/client.h"
#include "tests/bench/library_client.h"
#include "tests/bench/measure.h"
#include "tests/bench/modes.h"
#include "tests/bench/raw_client.h"
#include "tests/bench/untuned_echo.h"
#include "tests/support/process.h"

namespace rope::bench {
namespace {

// A client-library request with its memory.
struct Work {
  explicit Work(int64_t tokens)
      : input(static_cast<size_t>(tokens * kTokenBytes / 2), uint16_t{0x3f80}),
        output(input.size()),
        request(LibraryRequest(tokens, input.data(), output.data())) {}
  std::vector<uint16_t> input;
  std::vector<uint16_t> output;
  client::RotateRequest request;
};

std::function<void()> ConnectLibrary(const Drive& drive) {
  client::ConnectOptions options;
  if (drive.results == Drive::Results::kNewMemory) options.pooled_bytes = 0;
  auto connection = std::make_shared<client::Client>(ConnectClient(drive.target, options));
  auto work = std::make_shared<Work>(drive.tokens);
  if (drive.results != Drive::Results::kOutput) work->request.tensors[0].output = nullptr;
  work->request = Prepared(*connection, work->request);
  return [connection, work] { ROPE_CHECK(connection->Rotate(work->request).ok()); };
}

// Asynchronous calls of one thread of callbacks, where each answer sends the next request.
class PipelinedDrive {
 public:
  explicit PipelinedDrive(const Drive& drive)
      : drive_(drive), client_(ConnectClient(drive.target)) {}

  Driven Run() {
    std::vector<std::unique_ptr<Work>> works;
    for (int i = 0; i < drive_.clients; ++i) {
      works.push_back(std::make_unique<Work>(drive_.tokens));
      works.back()->request = Prepared(client_, works.back()->request);
    }
    begin_ = Clock::now();
    for (const auto& work : works) Send(*work);
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [this] { return idle_ == drive_.clients; });
    const double seconds = Seconds(Clock::now() - begin_);
    lock.unlock();
    return {static_cast<double>(answers_.load()) / seconds, 0};
  }

 private:
  void Send(const Work& work) {
    client_.RotateAsync(work.request, [this, &work](const auto& reply) { OnReply(work, reply); });
  }

  void OnReply(const Work& work, const Result<client::RotateReply>& reply) {
    ROPE_CHECK(reply.ok());
    answers_.fetch_add(1);
    if (Seconds(Clock::now() - begin_) < drive_.seconds) return Send(work);
    const std::lock_guard<std::mutex> lock(mutex_);
    ++idle_;
    ended_.notify_one();
  }

  const Drive drive_;
  const client::Client client_;
  Clock::time_point begin_;
  std::atomic<int64_t> answers_{0};
  std::mutex mutex_;
  std::condition_variable ended_;
  int idle_ = 0;
};

// The latencies of one client, then the rate of all clients.
Driven DriveCalls(const Drive& drive, const std::function<std::function<void()>()>& connect) {
  Driven driven;
  if (drive.clients == 1) {
    std::vector<double> latencies;
    const std::function<void()> call = connect();
    for (int i = 0; i < 5; ++i) call();
    const auto begin = Clock::now();
    while (Seconds(Clock::now() - begin) < drive.seconds) {
      const auto started = Clock::now();
      call();
      latencies.push_back(Seconds(Clock::now() - started));
    }
    driven.calls_per_second = static_cast<double>(latencies.size()) / Seconds(Clock::now() - begin);
    driven.median_seconds = Median(latencies);
    return driven;
  }
  driven.calls_per_second = CallRate(connect, drive.clients, drive.seconds);
  return driven;
}

Driven Do(const Drive& drive) {
  switch (drive.kind) {
    case DriveKind::kLibrary:
      return DriveCalls(drive, [&] { return ConnectLibrary(drive); });
    case DriveKind::kLibraryAsync:
      return PipelinedDrive(drive).Run();
    case DriveKind::kCallback: {
      const grpc::ByteBuffer request = MakeRequest(Head(1000, 10000), drive.tokens);
      return DriveCalls(drive, [&] { return ConnectCallback(drive.target, request); });
    }
  }
  return {};
}

}  // namespace

Driven RunDrive(const Drive& drive) {
  const testing::Outcome outcome = testing::RunProgram(
      {testing::OwnProgram(),
       absl::StrCat(kDrive, static_cast<int>(drive.kind), " ", drive.keep_memory ? 1 : 0, " ",
                    static_cast<int>(drive.results), " ", drive.tokens, " ", drive.clients, " ",
                    drive.seconds, " ", drive.target)});
  Driven driven;
  std::istringstream text(outcome.output);
  text >> driven.calls_per_second >> driven.median_seconds;
  if (outcome.status != 0) std::fprintf(stderr, "%s\n", outcome.output.c_str());
  ROPE_CHECK(outcome.status == 0 && driven.calls_per_second > 0);
  return driven;
}

void DriveMain(const std::string& text) {
  Drive drive;
  int kind = 0;
  int results = 0;
  std::istringstream(text) >> kind >> drive.keep_memory >> results >> drive.tokens >>
      drive.clients >> drive.seconds >> drive.target;
  drive.kind = static_cast<DriveKind>(kind);
  drive.results = static_cast<Drive::Results>(results);
  if (drive.keep_memory) Prepare();
  const Driven driven = Do(drive);
  std::printf("%.9g %.9g\n", driven.calls_per_second, driven.median_seconds);
  std::exit(0);
}

}  // namespace rope::bench
