// Rows about calls against the same-options echo, over real sockets to real processes:
//   service/decode_token_unix         one decode token (40 x 128 bf16), median
//   service/prepared_token_unix       the same by the id of a prepared request
//   service/inline_*                  Rotate of 1 and 16 MiB, 1 and 8 clients, TCP and Unix
//   service/stream_decode_tokens      RotateStream, 64 in flight, answers a second
//   service/stream_prepared_tokens    the same by the id of a prepared request
//   service/first_request_at_1000000  a new config's first request less the same request warm
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/bench/measure.h"
#include "tests/bench/raw_client.h"
#include "tests/bench/servers.h"

namespace rope::bench {
namespace {

grpc::ByteBuffer TokenRequest(bool prepared) {
  const v1::RotateRequest head = Head(1000, 10000);
  if (prepared) return MakePreparedRequest(Target(Kind::kRope, Socket::kUnix), head, 1);
  return MakeRequest(head, 1);
}

// Turns that are long enough to hide the switch from one server to the other.
Measurement DecodeToken(bool prepared) {
  constexpr int kRounds = 25;
  constexpr int kCalls = 800;
  RawClient rope(Target(Kind::kRope, Socket::kUnix));
  RawClient echo(Target(Kind::kEcho, Socket::kUnix));
  const grpc::ByteBuffer request = TokenRequest(prepared);
  const auto rate_of = [&request](RawClient& client) {
    std::vector<double> seconds;
    for (int i = 0; i < kCalls; ++i) seconds.push_back(client.Call(request));
    return 1 / Median(seconds);
  };
  const Rates rates = InTurns(
      kRounds, [&] { return rate_of(rope); }, [&] { return rate_of(echo); });
  return {.value = 1e6 / Median(rates.rope),
          .unit = "us",
          .yardstick = absl::StrFormat("same-options echo %.1f us", 1e6 / Median(rates.echo)),
          .ratio = 1 / Median(rates.ratios)};
}

Measurement Inline(Socket socket, int64_t mebibytes, int clients) {
  const int64_t tokens = (mebibytes << 20) / kTokenBytes;
  const auto bytes = static_cast<double>(tokens * kTokenBytes);
  const grpc::ByteBuffer request = MakeRequest(Head(0, 10000), tokens);
  const std::string rope = Target(Kind::kRope, socket);
  const std::string echo = Target(Kind::kEcho, socket);
  RawCallRate(rope, request, clients, 0.2);  // warms up pages and buffers
  RawCallRate(echo, request, clients, 0.2);
  // TCP on one host varies by a fifth from turn to turn and needs many turns. With many clients the
  // turns are long enough for several calls of each.
  const int rounds = clients == 1 ? 51 : 11;
  const double seconds = clients == 1 ? 0.1 : 0.5;
  const Rates rates = InTurns(
      rounds, [&] { return RawCallRate(rope, request, clients, seconds); },
      [&] { return RawCallRate(echo, request, clients, seconds); });
  return {
      .value = Median(rates.rope) * bytes / 1e9,
      .unit = "GB/s",
      .yardstick = absl::StrFormat("same-options echo %.2f GB/s", Median(rates.echo) * bytes / 1e9),
      .ratio = Median(rates.ratios)};
}

Measurement StreamTokens(bool prepared) {
  constexpr int kWindow = 64;
  constexpr int kRounds = 25;
  constexpr double kSeconds = 0.1;
  RawClient rope(Target(Kind::kRope, Socket::kUnix));
  RawClient echo(Target(Kind::kEcho, Socket::kUnix));
  const grpc::ByteBuffer request = TokenRequest(prepared);
  const Rates rates = InTurns(
      kRounds, [&] { return rope.StreamRate(request, kWindow, kSeconds); },
      [&] { return echo.StreamRate(request, kWindow, kSeconds); });
  return {.value = Median(rates.rope),
          .unit = "1/s",
          .yardstick = absl::StrFormat("same-options stream echo %.0f 1/s, %d in flight",
                                       Median(rates.echo), kWindow),
          .ratio = Median(rates.ratios)};
}

Measurement FirstRequest() {
  RawClient client(Target(Kind::kRope, Socket::kUnix));
  client.Call(MakeRequest(Head(0, 10000), 1));
  std::vector<double> cold;
  std::vector<double> warm;
  constexpr int kConfigs = 200;
  for (int i = 0; i < kConfigs; ++i) {
    // A new base each time, so that the config is new to the server.
    const grpc::ByteBuffer request = MakeRequest(Head(1000000, 20000 + i), 1);
    cold.push_back(client.Call(request));
    std::vector<double> repeats;
    repeats.reserve(5);
    for (int n = 0; n < 5; ++n) repeats.push_back(client.Call(request));
    warm.push_back(Median(repeats));
  }
  return {.value = (Median(cold) - Median(warm)) * 1e3,
          .unit = "ms",
          .yardstick = absl::StrFormat("cold %.0f us, warm %.0f us, medians of %d configs",
                                       Median(cold) * 1e6, Median(warm) * 1e6, kConfigs)};
}

}  // namespace

std::vector<Row> ServiceRows() {
  std::vector<Row> rows = {
      {"service/first_request_at_1000000", "<= 1", FirstRequest},
      {"service/decode_token_unix", "<= 1.5", [] { return DecodeToken(false); }},
      {"service/prepared_token_unix", "<= 1.15", [] { return DecodeToken(true); }},
      {"service/stream_decode_tokens", ">= 0.7", [] { return StreamTokens(false); }},
      {"service/stream_prepared_tokens", ">= 0.75", [] { return StreamTokens(true); }},
  };
  for (const Socket socket : {Socket::kUnix, Socket::kTcp}) {
    for (const int64_t mebibytes : {1, 16}) {
      for (const int clients : {1, 8}) {
        rows.push_back({absl::StrFormat("service/inline_%dMiB_%d_%s", mebibytes, clients,
                                        socket == Socket::kTcp ? "tcp" : "unix"),
                        ">= 0.9", [=] { return Inline(socket, mebibytes, clients); }});
      }
    }
  }
  return rows;
}

}  // namespace rope::bench
