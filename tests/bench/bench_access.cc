// Rows about what TLS and an access file cost, with prepared requests of the client library.
//   access/tls_decode_token   one decode token over TCP with TLS, against the same without
//   access/tls_16MiB          16 MiB over TCP with TLS, against the same without
//   access/token_decode_token one decode token over TCP with a bearer token that the server looks
//                             up, against the same without an access file
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "rope/client.h"
#include "tests/bench/library_client.h"
#include "tests/bench/measure.h"
#include "tests/bench/servers.h"
#include "tests/bench/workload.h"

namespace rope::bench {
namespace {

// A connection that calls with a request of its own.
class Caller {
 public:
  Caller(Kind kind, int64_t tokens)
      : client_(ConnectClient(Target(kind, Socket::kTcp), OptionsOf(kind))),
        memory_(tokens, kernels::DType::kBFloat16, kernels::Pairing::kHalf),
        request_(Prepared(client_, LibraryRequest(tokens, memory_.input(), memory_.output()))) {}

  void Call() const { ROPE_CHECK(client_.Rotate(request_).ok()); }
  double bytes() const { return static_cast<double>(memory_.bytes()); }

 private:
  static client::ConnectOptions OptionsOf(Kind kind) {
    client::ConnectOptions options;
    if (kind == Kind::kTls) options.tls.ca_file = CertificateFile();
    if (kind == Kind::kAccessFile) options.token = kToken;
    return options;
  }

  const client::Client client_;
  const Workload memory_;
  const client::RotateRequest request_;
};

Measurement NotMeasured() {
  return {.unit = "", .yardstick = "needs the program openssl", .measured = false};
}

Measurement DecodeToken(Kind kind) {
  if (CertificateFile().empty()) return NotMeasured();
  const Caller caller(kind, 1);
  const Caller plain(Kind::kRope, 1);
  const std::vector<double> seconds =
      MedianSeconds({[&] { caller.Call(); }, [&] { plain.Call(); }}, 4001);
  return {.value = seconds[0] * 1e6,
          .unit = "us",
          .yardstick = absl::StrFormat("plain TCP %.1f us", seconds[1] * 1e6),
          .ratio = seconds[0] / seconds[1]};
}

Measurement Large() {
  if (CertificateFile().empty()) return NotMeasured();
  constexpr int64_t kTokens = (int64_t{16} << 20) / kTokenBytes;
  const Caller caller(Kind::kTls, kTokens);
  const Caller plain(Kind::kRope, kTokens);
  const std::vector<double> seconds =
      MedianSeconds({[&] { caller.Call(); }, [&] { plain.Call(); }}, 41);
  return {.value = caller.bytes() / seconds[0] * 1e-9,
          .unit = "GB/s",
          .yardstick = "plain TCP " + GigabytesPerSecond(plain.bytes(), seconds[1]),
          .ratio = seconds[1] / seconds[0]};
}

}  // namespace

std::vector<Row> AccessRows() {
  return {{"access/tls_decode_token", "", [] { return DecodeToken(Kind::kTls); }},
          {"access/tls_16MiB", "", Large},
          {"access/token_decode_token", "", [] { return DecodeToken(Kind::kAccessFile); }}};
}

}  // namespace rope::bench
