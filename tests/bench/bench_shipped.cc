// Rows that compare the shipped server and client library with the untuned echo and its client, on
// a Unix socket. Clients are separate processes, so that each has the allocator settings of its
// row. The server has --enable_shared_memory, the client default options: tensors of 64 KiB and
// more are staged.
//   shipped/16MiB_1, 1MiB_1, 1MiB_4   throughput
//   shipped/*_plain_client            the same with a client that leaves its allocator alone
//   shipped/*_inline                  the same with a server that shares no memory
//   shipped/decode_token_1            median of one decode token
//   shipped/decode_tokens_8           decode tokens a second of 8 clients
//   shipped/async_decode_tokens       asynchronous calls, 64 in flight, against synchronous calls
//                                     of one thread, decode tokens a second
//   shipped/1MiB_1_kept_memory        1 MiB inline and a client that leaves its allocator alone:
//                                     replies in memory that the connection has kept, against new
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/bench/measure.h"
#include "tests/bench/modes.h"
#include "tests/bench/raw_client.h"
#include "tests/bench/servers.h"

namespace rope::bench {
namespace {

constexpr double kSeconds = 0.7;  // for a client's turn
constexpr int kRounds = 3;

struct Variant {
  Kind server = Kind::kSharedMemory;
  bool keep_memory = true;  // of the client
};

Drive Shipped(int64_t tokens, int clients, const Variant& variant) {
  return {.keep_memory = variant.keep_memory,
          .tokens = tokens,
          .clients = clients,
          .seconds = kSeconds,
          .target = Target(variant.server, Socket::kUnix)};
}

Drive Untuned(int64_t tokens, int clients) {
  return {.kind = DriveKind::kCallback,
          .keep_memory = false,
          .tokens = tokens,
          .clients = clients,
          .seconds = kSeconds,
          .target = Target(Kind::kUntunedEcho, Socket::kUnix)};
}

// Medians of the turns that each client took, in the order of `drives`.
std::vector<Driven> TakeTurns(const std::vector<Drive>& drives) {
  std::vector<std::vector<double>> rates(drives.size());
  std::vector<std::vector<double>> medians(drives.size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < drives.size(); ++i) {
      const Driven driven = RunDrive(drives[i]);
      rates[i].push_back(driven.calls_per_second);
      medians[i].push_back(driven.median_seconds);
    }
  }
  std::vector<Driven> result;
  for (size_t i = 0; i < drives.size(); ++i) {
    result.push_back({Median(rates[i]), Median(medians[i])});
  }
  return result;
}

Measurement Throughput(int64_t mebibytes, int clients, const Variant& variant) {
  const int64_t tokens = (mebibytes << 20) / kTokenBytes;
  const double gigabytes = static_cast<double>(tokens * kTokenBytes) / 1e9;
  const std::vector<Driven> driven =
      TakeTurns({Shipped(tokens, clients, variant), Untuned(tokens, clients)});
  return {.value = driven[0].calls_per_second * gigabytes,
          .unit = "GB/s",
          .yardstick =
              absl::StrFormat("untuned echo %.2f GB/s", driven[1].calls_per_second * gigabytes),
          .ratio = driven[0].calls_per_second / driven[1].calls_per_second};
}

Measurement DecodeToken() {
  const std::vector<Driven> driven = TakeTurns({Shipped(1, 1, {}), Untuned(1, 1)});
  return {.value = driven[0].median_seconds * 1e6,
          .unit = "us",
          .yardstick = absl::StrFormat("untuned echo %.1f us", driven[1].median_seconds * 1e6),
          .ratio = driven[0].median_seconds / driven[1].median_seconds};
}

Measurement DecodeTokens(int clients) {
  const std::vector<Driven> driven = TakeTurns({Shipped(1, clients, {}), Untuned(1, clients)});
  return {.value = driven[0].calls_per_second,
          .unit = "1/s",
          .yardstick = absl::StrFormat("untuned echo %.0f 1/s", driven[1].calls_per_second),
          .ratio = driven[0].calls_per_second / driven[1].calls_per_second};
}

Measurement InFlight() {
  Drive in_flight = Shipped(1, 64, {});
  in_flight.kind = DriveKind::kLibraryAsync;
  const std::vector<Driven> driven = TakeTurns({in_flight, Shipped(1, 1, {})});
  return {.value = driven[0].calls_per_second,
          .unit = "1/s",
          .yardstick = absl::StrFormat("synchronous, one thread %.0f 1/s; %d in flight",
                                       driven[1].calls_per_second, in_flight.clients),
          .ratio = driven[0].calls_per_second / driven[1].calls_per_second};
}

Measurement KeptMemory() {
  constexpr int64_t kTokens = (int64_t{1} << 20) / kTokenBytes;
  Drive kept = Shipped(kTokens, 1, {.server = Kind::kRope, .keep_memory = false});
  kept.results = Drive::Results::kKeptMemory;
  Drive fresh = kept;
  fresh.results = Drive::Results::kNewMemory;
  const std::vector<Driven> driven = TakeTurns({kept, fresh});
  return {.value = driven[0].median_seconds * 1e6,
          .unit = "us",
          .yardstick = absl::StrFormat("new memory %.1f us", driven[1].median_seconds * 1e6),
          .ratio = driven[0].median_seconds / driven[1].median_seconds};
}

}  // namespace

std::vector<Row> ShippedRows() {
  const Variant shipped = {};
  const Variant plain_client = {.keep_memory = false};
  const Variant no_memory = {.server = Kind::kRope};
  return {
      {"shipped/16MiB_1", ">= 1.6", [=] { return Throughput(16, 1, shipped); }},
      {"shipped/1MiB_1", ">= 3", [=] { return Throughput(1, 1, shipped); }},
      {"shipped/1MiB_4", ">= 1.3", [=] { return Throughput(1, 4, shipped); }},
      {"shipped/16MiB_1_plain_client", "", [=] { return Throughput(16, 1, plain_client); }},
      {"shipped/1MiB_1_plain_client", "", [=] { return Throughput(1, 1, plain_client); }},
      {"shipped/16MiB_1_inline", "", [=] { return Throughput(16, 1, no_memory); }},
      {"shipped/1MiB_1_inline", "", [=] { return Throughput(1, 1, no_memory); }},
      {"shipped/1MiB_1_kept_memory", "<= 0.9", KeptMemory},
      {"shipped/decode_token_1", "<= 0.4", DecodeToken},
      {"shipped/decode_tokens_8", ">= 1.8", [] { return DecodeTokens(8); }},
      {"shipped/async_decode_tokens", ">= 1.5", InFlight},
  };
}

}  // namespace rope::bench
