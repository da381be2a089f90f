#include "tests/bench/library_client.h"

#include <cstdio>
#include <utility>

#include "kernels/check.h"
#include "tests/bench/workload.h"

namespace rope::bench {

client::Client ConnectClient(const std::string& target, const client::ConnectOptions& options) {
  auto connected = client::Client::Connect(target, options);
  if (!connected.ok())
    std::fprintf(stderr, "rope_bench: %s\n", connected.status().ToString().c_str());
  ROPE_CHECK(connected.ok());
  return *std::move(connected);
}

client::RotateRequest LibraryRequest(int64_t tokens, const void* input, void* output) {
  client::RotateRequest request;
  request.rope.config.emplace();
  request.rope.config->head_dim = kHeadDim;
  request.rope.pairing = client::Pairing::kHalf;
  request.positions.start = 1000;
  request.tensors.push_back({.layout = "SHD",
                             .dtype = client::DType::kBFloat16,
                             .shape = {tokens, kHeads, kHeadDim},
                             .data = input,
                             .output = output});
  return request;
}

client::RotateRequest CallOf(const client::PreparedRotation& rotation,
                             const client::RotateRequest& whole) {
  client::RotateRequest call{.prepared = rotation, .positions = whole.positions};
  for (const client::TensorView& tensor : whole.tensors) {
    call.tensors.push_back({.data = tensor.data, .output = tensor.output});
  }
  return call;
}

client::RotateRequest Prepared(const client::Client& client, const client::RotateRequest& whole) {
  return CallOf(client.Prepare(whole).value(), whole);
}

}  // namespace rope::bench
