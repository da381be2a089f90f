// The example of client/README.md: one client of several servers, and the policy of its calls.
#include <chrono>
#include <cstdio>
#include <vector>

#include "rope/client.h"

int main(int argc, char** argv) {
  using std::chrono::milliseconds;
  // Or "dns:///rope.default.svc:50051", for all addresses of a name.
  const char* target = argc > 1 ? argv[1] : "127.0.0.1:50051,127.0.0.1:50052";
  auto client = rope::client::Client::Connect(target);
  if (!client.ok()) return std::puts(client.status().ToString().c_str()), 1;

  const rope::client::CallOptions policy = {.timeout = milliseconds(500),
                                            .attempts_max = 3,
                                            .backoff_initial = milliseconds(5),
                                            .metadata = {{"x-tenant", "a"}}};
  std::vector<float> q(32 * 128, 1.0f);
  rope::client::RotateRequest request;
  request.rope.model = "llama-3.1-8b";
  request.tensors = {
      {.layout = "SHD", .shape = {1, 32, 128}, .data = q.data(), .output = q.data()}};
  for (int64_t position = 100000; position < 100004; ++position) {
    q.assign(q.size(), 1.0f);
    request.positions.start = position;
    const auto reply = client->Rotate(request, policy);
    if (!reply.ok()) return std::puts(reply.status().ToString().c_str()), 1;
    std::printf("%s: %.7f\n", reply->device.c_str(), q[0]);
  }
}
