// The example of client/README.md: many requests in flight, without a thread for each.
#include <cstdio>
#include <future>
#include <vector>

#include "rope/client.h"

namespace {

using rope::Result;
using rope::client::RotateReply;

// One decode token at position 100000, rotated in place.
rope::client::RotateRequest CallOf(const rope::client::PreparedRotation& decode,
                                   std::vector<float>& q) {
  return {.prepared = decode,
          .positions = {.start = 100000},
          .tensors = {{.data = q.data(), .output = q.data()}}};
}

}  // namespace

int main(int argc, char** argv) {
  auto client = rope::client::Client::Connect(argc > 1 ? argv[1] : "127.0.0.1:50051");
  if (!client.ok()) return std::puts(client.status().ToString().c_str()), 1;
  std::vector<std::vector<float>> q(2, std::vector<float>(32 * 128, 1.0f));
  auto decode = client->Prepare(
      {.rope = {.model = "llama-3.1-8b"}, .tensors = {{.layout = "SHD", .shape = {1, 32, 128}}}});
  if (!decode.ok()) return std::puts(decode.status().ToString().c_str()), 1;

  // A future each ...
  std::future<Result<RotateReply>> future = client->RotateFuture(CallOf(*decode, q[0]));

  // ... or a callback, and a handle to cancel with.
  std::promise<void> answered;
  const rope::client::Call call =
      client->RotateAsync(CallOf(*decode, q[1]), [&answered](const Result<RotateReply>& reply) {
        if (!reply.ok()) std::puts(reply.status().ToString().c_str());
        answered.set_value();
      });

  if (!future.get().ok()) return 1;
  answered.get_future().wait();
  for (const auto& row : q) std::printf("%.7f\n", row[0]);
}
