// A program outside of this tree that rotates (1, 0) at position 1 in its own process, with the
// installed kernels: from a config.json to cos 1 and sin 1. install_test.sh compiles it.
#include <cstdint>
#include <cstdio>

#include "kernels/backends.h"
#include "kernels/config/config_json.h"
#include "kernels/tables/table_cache.h"

int main() {
  namespace kernels = rope::kernels;
  const auto model =
      kernels::ModelConfig::Parse(R"({"model_type": "llama", "rope_theta": 10000, "head_dim": 2})");
  const auto layer = model->Layer({});
  const auto rope = kernels::Resolve(layer->config, 2);
  const auto frequencies = (*rope)->ForSeqLen(2, kernels::Multiplier::kAttentionFactor);

  kernels::TableCache cache(1 << 20);
  kernels::TokenRows rows;
  const int64_t positions[] = {1};
  if (!cache.AppendRows(*frequencies, positions, rows).ok()) return 1;

  float head[] = {1, 0};
  kernels::RotateJob job{.input = head, .output = head, .tokens = 1, .heads = 1, .head_dim = 2};
  job.geometry = {.pairs = 1, .partner = 1};
  job.rows = rows.rows;
  const auto backend = kernels::CreateBackend(kernels::ListBackends().front(), {});
  if (!backend.ok() || !(*backend)->Rotate({&job, 1}).ok()) return 1;
  std::printf("%s: %.7f %.7f\n", (*backend)->detail().c_str(), head[0], head[1]);
}
