// The example of client/README.md: q and k in memory that client and server share.
#include <algorithm>
#include <cstdio>

#include "rope/client.h"

int main(int argc, char** argv) {
  constexpr int64_t kTokens = 4, kQHeads = 32, kKHeads = 8, kHeadDim = 128;
  auto client = rope::client::Client::Connect(argc > 1 ? argv[1] : "unix:/run/rope/rope.sock",
                                              {.arena_bytes = 64 << 20});
  if (!client.ok()) return std::puts(client.status().ToString().c_str()), 1;
  const rope::client::ChosenTransport transport = client->transport();
  std::printf("%s %s\n", Name(transport.transport), transport.reason.c_str());

  // Once: slots, as long-lived as the layers that write into them, and what every step repeats.
  auto q = client->arena().Allocate(kTokens * kQHeads * kHeadDim * sizeof(float));
  auto k = client->arena().Allocate(kTokens * kKHeads * kHeadDim * sizeof(float));
  if (!q.ok() || !k.ok()) return 1;
  rope::client::RotateRequest request;
  request.rope.model = "llama-3.1-8b";
  request.tensors = {{.role = rope::client::Role::kQ,
                      .layout = "SHD",
                      .shape = {kTokens, kQHeads, kHeadDim},
                      .data = q->data(),
                      .output = q->data()},
                     {.role = rope::client::Role::kK,
                      .layout = "SHD",
                      .shape = {kTokens, kKHeads, kHeadDim},
                      .data = k->data(),
                      .output = k->data()}};
  const auto decode = client->Prepare(request);
  if (!decode.ok()) return std::puts(decode.status().ToString().c_str()), 1;

  // Every step: write, rotate in place, read.
  for (int64_t step = 0; step < 3; ++step) {
    auto* q_values = static_cast<float*>(q->data());
    std::fill_n(q_values, kTokens * kQHeads * kHeadDim, 1.0f);
    std::fill_n(static_cast<float*>(k->data()), kTokens * kKHeads * kHeadDim, 1.0f);
    const auto reply = client->Rotate({.prepared = *decode,
                                       .positions = {.start = 100000 + step * kTokens},
                                       .tensors = {{.data = q->data(), .output = q->data()},
                                                   {.data = k->data(), .output = k->data()}}});
    if (!reply.ok()) return std::puts(reply.status().ToString().c_str()), 1;
    std::printf("%.7f\n", q_values[0]);
  }
}
