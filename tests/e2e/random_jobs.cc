#include "tests/e2e/random_jobs.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "client/cli/golden.h"
#include "kernels/config/config_json.h"
#include "kernels/config/presets.h"

namespace rope::testing {
namespace {

using client::Pairing;

// Configs that are sent inline.
struct JsonSpec {
  std::string_view json;
  Pairing pairing;
  int64_t seq_len;
};
constexpr JsonSpec kJsonSpecs[] = {
    {R"({"head_dim": 128, "rope_theta": 10000})", Pairing::kInterleaved, 0},
    {R"({"head_dim": 64, "rope_theta": 10000, "partial_rotary_factor": 0.25})", Pairing::kHalf, 0},
    {R"({"head_dim": 64, "rope_theta": 150000, "max_position_embeddings": 131072, "rope_scaling":
        {"rope_type": "yarn", "factor": 32, "original_max_position_embeddings": 4096}})",
     Pairing::kHalf, 0},
    {R"({"head_dim": 128, "rope_theta": 500000, "max_position_embeddings": 131072, "rope_scaling":
        {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
         "original_max_position_embeddings": 8192}})",
     Pairing::kInterleaved, 0},
    {R"({"head_dim": 80, "rope_theta": 10000, "rope_scaling":
        {"rope_type": "linear", "factor": 4}})",
     Pairing::kHalf, 0},
    {R"({"head_dim": 64, "rope_theta": 10000, "max_position_embeddings": 2048, "rope_scaling":
        {"rope_type": "dynamic", "factor": 2}})",
     Pairing::kHalf, 200000},
};
constexpr std::string_view kPresets[] = {"llama-3.1-8b", "phi-2"};

std::shared_ptr<const kernels::ResolvedRope> Resolved(std::string_view json) {
  const auto config = kernels::ModelConfig::Parse(json);
  if (!config.ok()) std::abort();
  const auto layer = config->Layer({});
  if (!layer.ok()) std::abort();
  auto resolved = kernels::Resolve(layer->config);
  if (!resolved.ok()) std::abort();
  return *std::move(resolved);
}

std::vector<JobSpec> MakeSpecs() {
  std::vector<JobSpec> specs;
  for (const JsonSpec& spec : kJsonSpecs) {
    specs.push_back({.rope = {.config_json = std::string(spec.json), .pairing = spec.pairing},
                     .pairing = spec.pairing,
                     .resolved = Resolved(spec.json),
                     .seq_len = spec.seq_len});
  }
  for (const kernels::Preset& preset : kernels::Presets()) {
    for (const std::string_view name : kPresets) {
      if (preset.name != name) continue;
      const bool half = preset.pairing == kernels::Pairing::kHalf;
      specs.push_back({.rope = {.model = std::string(name)},
                       .pairing = half ? Pairing::kHalf : Pairing::kInterleaved,
                       .resolved = Resolved(preset.config_json)});
    }
  }
  if (specs.size() != std::size(kJsonSpecs) + std::size(kPresets)) std::abort();
  return specs;
}

const std::vector<JobSpec>& Specs() {
  static const std::vector<JobSpec> specs = MakeSpecs();
  return specs;
}

}  // namespace

Job::Job(const JobSpec& spec, client::DType dtype, int64_t tokens, int64_t position, bool in_place,
         uint32_t seed)
    : spec_(spec), dtype_(dtype), tokens_(tokens), position_(position) {
  request_.rope = spec.rope;
  request_.positions.start = position;
  if (spec.seq_len > 0) request_.positions.seq_lens = {spec.seq_len};
  std::minstd_rand random(seed);
  Add(client::Role::kQ, 4, in_place, random);
  Add(client::Role::kK, 1, in_place, random);
}

void Job::Add(client::Role role, int64_t heads, bool in_place, std::minstd_rand& random) {
  auto tensor = std::make_unique<Tensor>();
  tensor->role = role;
  tensor->heads = heads;
  const int64_t head_dim = spec_.resolved->head_dim();
  tensor->values.resize(static_cast<size_t>(tokens_ * heads * head_dim));
  // Multiples of 1/16 below 4, which every dtype represents exactly.
  for (double& value : tensor->values) value = static_cast<double>(random() % 128) / 16 - 4;
  tensor->data = client::Store(tensor->values, dtype_);
  if (!in_place) tensor->output.resize(tensor->data.size());
  request_.tensors.push_back({.role = role,
                              .layout = "SHD",
                              .dtype = dtype_,
                              .shape = {tokens_, heads, head_dim},
                              .data = tensor->data.data(),
                              .output = in_place ? tensor->data.data() : tensor->output.data()});
  tensors_.push_back(std::move(tensor));
}

std::vector<double> Job::Rotated(const Tensor& tensor) const {
  const kernels::ResolvedRope& rope = *spec_.resolved;
  const int64_t seq_len = spec_.seq_len > 0 ? spec_.seq_len : position_ + tokens_;
  const std::vector<kernels::InverseFrequency> inv_freq = rope.Evaluate(seq_len).inv_freq;
  const auto pairs = static_cast<size_t>(rope.rotary_dim() / 2);
  const auto head_dim = static_cast<size_t>(rope.head_dim());
  const bool half = spec_.pairing == Pairing::kHalf;
  std::vector<double> rotated = tensor.values;
  for (size_t i = 0; i < pairs; ++i) {
    const size_t a = half ? i : 2 * i;
    const size_t b = half ? i + pairs : 2 * i + 1;
    for (int64_t token = 0; token < tokens_; ++token) {
      const auto [cos, sin] =
          kernels::ExactCosSin(position_ + token, inv_freq[i], rope.attention_factor());
      for (int64_t head = 0; head < tensor.heads; ++head) {
        const size_t row = static_cast<size_t>(token * tensor.heads + head) * head_dim;
        const double x = tensor.values[row + a];
        const double y = tensor.values[row + b];
        rotated[row + a] = x * cos - y * sin;
        rotated[row + b] = y * cos + x * sin;
      }
    }
  }
  return rotated;
}

std::string Job::Check(const Result<client::RotateReply>& reply) const {
  if (!reply.ok()) return reply.status().ToString();
  client::GoldenFile golden;
  golden.pairing = spec_.pairing;
  golden.head_dim = spec_.resolved->head_dim();
  golden.rotary_dim = spec_.resolved->rotary_dim();
  golden.tokens = tokens_;
  golden.attention_factor = spec_.resolved->attention_factor();
  if (reply->tensors.size() != tensors_.size()) return "another number of tensors";
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& tensor = *tensors_[i];
    const client::RotatedTensor& rotated = reply->tensors[i];
    if (rotated.data != request_.tensors[i].output ||
        rotated.bytes != static_cast<int64_t>(tensor.data.size())) {
      return "another place or size than asked for";
    }
    const client::GoldenTensor expected{.role = tensor.role,
                                        .heads = tensor.heads,
                                        .input = tensor.values,
                                        .expected = Rotated(tensor)};
    const client::Deviation deviation = client::Compare(golden, expected, dtype_, rotated.data);
    if (!(deviation.ratio <= 1)) return deviation.where;
  }
  return {};
}

std::unique_ptr<Job> RandomJobs::Next() {
  constexpr client::DType kDTypes[] = {client::DType::kFloat32, client::DType::kFloat16,
                                       client::DType::kBFloat16};
  const JobSpec& spec = Specs()[random_() % Specs().size()];
  const client::DType dtype = kDTypes[random_() % std::size(kDTypes)];
  // Mostly decode tokens, sometimes a prompt. Now and then a request is too large for the direct
  // path; other requests then gather into a batch behind it.
  int64_t tokens = OneIn(4) ? 1 + static_cast<int64_t>(random_() % 96) : 1;
  if (OneIn(32)) tokens = 512 + static_cast<int64_t>(random_() % 512);
  const auto position = static_cast<int64_t>(random_() % 100000);
  const bool in_place = OneIn(2);
  return std::make_unique<Job>(spec, dtype, tokens, position, in_place,
                               static_cast<uint32_t>(random_()));
}

}  // namespace rope::testing
