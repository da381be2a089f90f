// The smallest program without a server: the engine in this process rotates a query of ones at
// position 100000 for llama-3.1-8b. Beside the connection it is example.cc.
#include <cstdio>
#include <vector>

#include "rope/embedded.h"

int main() {
  auto client = rope::embedded::Connect();
  if (!client.ok()) return std::puts(client.status().ToString().c_str()), 1;

  std::vector<float> q(32 * 128, 1.0f);  // [tokens 1][heads 32][head_dim 128]
  rope::client::TensorView tensor;
  tensor.layout = "THD";
  tensor.shape = {1, 32, 128};
  tensor.data = q.data();
  tensor.output = q.data();  // the answer lands here

  rope::client::RotateRequest request;
  request.rope.model = "llama-3.1-8b";
  request.positions.position_ids = {100000};
  request.tensors = {tensor};
  auto reply = client->Rotate(request);
  if (!reply.ok()) return std::puts(reply.status().ToString().c_str()), 1;
  std::printf("%s: %.7f %.7f ...\n", reply->device.c_str(), q[0], q[1]);
}
