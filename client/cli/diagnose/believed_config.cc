#include "client/cli/diagnose/believed_config.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/diagnose/rope_numbers.h"
#include "kernels/compat/rope_readings.h"
#include "kernels/config/config_json.h"
#include "kernels/config/layer_config.h"
#include "kernels/config/presets.h"
#include "kernels/config/validate_config.h"

namespace rope::client {
namespace {

std::optional<kernels::Pairing> KernelsPairing(Pairing pairing) {
  switch (pairing) {
    case Pairing::kHalf:
      return kernels::Pairing::kHalf;
    case Pairing::kInterleaved:
      return kernels::Pairing::kInterleaved;
    case Pairing::kUnspecified:
      break;
  }
  return std::nullopt;
}

kernels::Compat KernelsCompat(Compat compat) {
  switch (compat) {
    case Compat::kHf:
      return kernels::Compat::kHuggingFace;
    case Compat::kVllm:
      return kernels::Compat::kVllm;
    case Compat::kLlamacpp:
      return kernels::Compat::kLlamaCpp;
    case Compat::kDeepseek:
      return kernels::Compat::kDeepSeek;
    case Compat::kUnspecified:
      break;
  }
  return kernels::Compat::kDefault;
}

kernels::Precision KernelsPrecision(Precision precision) {
  return precision == Precision::kHf ? kernels::Precision::kHuggingFace
                                     : kernels::Precision::kExact;
}

kernels::Mrope::Layout KernelsLayout(const RopeConfig& config) {
  using Layout = kernels::Mrope::Layout;
  switch (config.mrope_layout) {
    case MropeLayout::kSections:
      return Layout::kSections;
    case MropeLayout::kInterleaved:
      return Layout::kInterleaved;
    case MropeLayout::kHwInterleaved:
      return Layout::kHwInterleaved;
    case MropeLayout::kAxial:
      return Layout::kAxial;
    case MropeLayout::kUnspecified:
      break;
  }
  return config.mrope_interleaved.value_or(false) ? Layout::kInterleaved : Layout::kSections;
}

Status NoRotation() {
  return Status(StatusCode::kFailedPrecondition,
                "config: got a layer without rotary embedding, want one that rotates");
}

// The layer that the spec chooses in a config.json, read as its `compat` does.
Result<BelievedConfig> FromJson(std::string_view json, const RopeSpec& spec,
                                std::optional<kernels::Pairing> pairing) {
  const auto model = kernels::ModelConfig::Parse(json);
  if (!model.ok()) return StatusOf(model.status());
  kernels::LayerChoice choice = {.layer = std::nullopt, .layer_type = spec.layer_type};
  if (spec.layer.has_value()) choice.layer = *spec.layer;
  auto layer = model->Layer(choice);
  if (!layer.ok()) return StatusOf(layer.status());
  if (!layer->rotates) return NoRotation();
  layer->config.precision = KernelsPrecision(spec.precision);
  const absl::Status valid = kernels::Validate(layer->config);
  if (!valid.ok()) return StatusOf(valid);
  auto read = kernels::ApplyCompat(layer->config, KernelsCompat(spec.compat));
  if (!read.ok()) return StatusOf(read.status());
  if (!pairing.has_value()) pairing = layer->pairing;
  return BelievedConfig{
      .config = std::move(read->config),
      .pairing = KernelsPairing(spec.pairing).value_or(pairing.value_or(kernels::Pairing::kHalf))};
}

Result<BelievedConfig> FromPreset(const RopeSpec& spec) {
  const auto presets = kernels::Presets();
  const auto preset = std::find_if(presets.begin(), presets.end(), [&spec](const auto& candidate) {
    return candidate.name == spec.model;
  });
  if (preset != presets.end()) return FromJson(preset->config_json, spec, preset->pairing);
  return Status(
      StatusCode::kNotFound,
      absl::StrCat("--model: got \"", spec.model,
                   "\", want a preset of this program; --target asks a server for others"));
}

Result<BelievedConfig> FromServer(const Arguments& arguments, const RopeSpec& spec,
                                  int64_t head_dim) {
  const Result<Client> client = ConnectTo(arguments);
  if (!client.ok()) return client.status();
  const Result<DescribeReply> reply =
      client->Describe({.rope = spec, .head_dim = head_dim}, CallOptionsOf(arguments));
  if (!reply.ok()) return reply.status();
  if (!reply->rotates) return NoRotation();
  Result<kernels::RopeConfig> config = KernelsConfigOf(reply->config);
  if (!config.ok()) return config.status();
  config->precision = KernelsPrecision(reply->precision);
  return BelievedConfig{
      .config = *std::move(config),
      .pairing = KernelsPairing(reply->pairing).value_or(kernels::Pairing::kHalf)};
}

}  // namespace

Result<kernels::RopeConfig> KernelsConfigOf(const RopeConfig& from) {
  kernels::RopeConfig config;
  if (!from.rope_type.empty()) {
    const auto type = kernels::ParseRopeType(from.rope_type);
    if (!type.ok()) return StatusOf(type.status());
    config.rope_type = *type;
  }
  config.rope_theta = from.rope_theta.value_or(config.rope_theta);
  config.head_dim = from.head_dim;
  config.rotary_dim = from.rotary_dim;
  config.partial_rotary_factor = from.partial_rotary_factor;
  config.max_position_embeddings = from.max_position_embeddings;
  config.original_max_position_embeddings = from.original_max_position_embeddings;
  config.factor = from.factor;
  config.attention_factor = from.attention_factor;
  config.mscale = from.mscale;
  config.mscale_all_dim = from.mscale_all_dim;
  config.beta_fast = from.beta_fast;
  config.beta_slow = from.beta_slow;
  config.truncate = from.truncate;
  config.low_freq_factor = from.low_freq_factor;
  config.high_freq_factor = from.high_freq_factor;
  config.short_factor = from.short_factor;
  config.long_factor = from.long_factor;
  config.attn_factor = from.attn_factor;
  config.alpha = from.alpha;
  config.mixed_b = from.mixed_b;
  config.inv_freq = from.inv_freq;
  config.rotary_offset = from.rotary_offset;
  if (from.ramp == YarnRamp::kIndex) config.ramp = kernels::YarnRamp::kIndex;
  if (from.ramp == YarnRamp::kTurns) config.ramp = kernels::YarnRamp::kTurns;
  if (from.longrope_branch == LongropeBranch::kShort) {
    config.longrope_branch = kernels::LongropeBranch::kShort;
  }
  if (from.longrope_branch == LongropeBranch::kLong) {
    config.longrope_branch = kernels::LongropeBranch::kLong;
  }
  if (from.xpos.has_value()) {
    config.xpos = {.scale_base = from.xpos->scale_base, .centre = from.xpos->centre};
  }
  if (from.mrope_section.empty()) return config;
  if (from.mrope_section.size() != 3) {
    return Status(
        StatusCode::kInvalidArgument,
        absl::StrCat("mrope_section: got ", from.mrope_section.size(), " counts, want three"));
  }
  config.mrope = kernels::Mrope{.section = {}, .layout = KernelsLayout(from)};
  std::copy(from.mrope_section.begin(), from.mrope_section.end(), config.mrope->section.begin());
  return config;
}

Result<RopeSpec> BelievedSpecOf(const Arguments& arguments, int64_t head_dim) {
  for (const char* flag : {"model", "config", "config_id", "layer", "layer_type"}) {
    if (!arguments.Has(flag)) continue;
    Result<RopeSpec> spec = RopeSpecOf(arguments);
    if (!spec.ok() || spec->config_id.empty() || arguments.Has("target")) return spec;
    return Status(StatusCode::kInvalidArgument,
                  "--config_id: got it without --target, want the server that gave it");
  }
  const Result<Pairing> pairing = PairingOf(arguments);
  if (!pairing.ok()) return pairing.status();
  RopeSpec spec;
  spec.config = RopeConfig{.head_dim = head_dim};
  spec.pairing = *pairing;
  return spec;
}

Result<BelievedConfig> BelievedConfigOf(const RopeSpec& spec, const Arguments& arguments,
                                        int64_t head_dim) {
  if (arguments.Has("config")) return FromJson(spec.config_json, spec, std::nullopt);
  if (!spec.config.has_value()) {
    return arguments.Has("target") ? FromServer(arguments, spec, head_dim) : FromPreset(spec);
  }
  Result<kernels::RopeConfig> config = KernelsConfigOf(*spec.config);
  if (!config.ok()) return config.status();
  return BelievedConfig{.config = *std::move(config),
                        .pairing = KernelsPairing(spec.pairing).value_or(kernels::Pairing::kHalf)};
}

}  // namespace rope::client
