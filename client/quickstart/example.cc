// The example of the README: one decode token of Llama 3.1 8B at position 100000.
#include <cstdio>
#include <vector>

#include "rope/client.h"

int main(int argc, char** argv) {
  auto client = rope::client::Client::Connect(argc > 1 ? argv[1] : "127.0.0.1:50051");
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
