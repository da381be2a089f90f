// An engine with a kernel of its own fetches the cache that vLLM keeps: cos_sin_cache in bf16.
#include <cstdio>

#include "rope/client.h"

namespace {

constexpr const char* kConfig = R"({"model_type": "llama", "head_dim": 128, "rope_theta": 500000})";

}  // namespace

int main(int argc, char** argv) {
  auto client = rope::client::Client::Connect(argc > 1 ? argv[1] : "127.0.0.1:50051");
  if (!client.ok()) return std::puts(client.status().ToString().c_str()), 1;

  // [rows, rotary_dim]: 64 cosines and 64 sines of each position, rounded once.
  const auto tables = client->GetTables({.rope = {.config_json = kConfig},
                                         .positions = {.end = 8192},
                                         .dtype = rope::client::DType::kBFloat16,
                                         .layout = rope::client::TableLayout::kCosSinCache});
  if (!tables.ok()) return std::puts(tables.status().ToString().c_str()), 1;
  std::printf("[%lld, %lld], %zu bytes\n", static_cast<long long>(tables->table.shape[0]),
              static_cast<long long>(tables->table.shape[1]), tables->table.data.size());
}
