#include "client/cli/local_describe.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/error.h"
#include "kernels/config/config_json.h"
#include "kernels/config/presets.h"
#include "kernels/config/rope_config.h"
#include "kernels/status_macros.h"
#include "proto/error.h"
#include "proto/nearest_name.h"
#include "proto/wire/message_hash.h"

namespace rope::client {
namespace {

constexpr int64_t kPositionMax = int64_t{1} << 30;
constexpr int64_t kSeqLenMax = int64_t{1} << 40;

absl::Status CheckOptions(const DescribeRequest& request) {
  if (request.seq_len.has_value() && (*request.seq_len < 1 || *request.seq_len > kSeqLenMax)) {
    return proto::InvalidField("seq_len", *request.seq_len,
                               absl::StrCat("a length from 1 to ", kSeqLenMax));
  }
  for (const int64_t position : request.positions) {
    if (position >= 0 && position <= kPositionMax) continue;
    return proto::InvalidField("positions", position, absl::StrCat("0 to ", kPositionMax));
  }
  return absl::OkStatus();
}

absl::StatusOr<kernels::ModelConfig> ReadModel(const RopeSpec& spec) {
  const kernels::Preset* const preset = kernels::FindPreset(spec.model);
  return kernels::ModelConfig::Parse(preset == nullptr ? spec.config_json : preset->config_json,
                                     spec.sub_config);
}

absl::StatusOr<kernels::LayerRope> ReadRope(const kernels::ModelConfig& config,
                                            const RopeSpec& spec) {
  ROPE_ASSIGN_OR_RETURN(kernels::LayerConfig layer,
                        config.Layer({.layer = spec.layer, .layer_type = spec.layer_type}));
  const kernels::Preset* const preset = kernels::FindPreset(spec.model);
  if (preset != nullptr && spec.sub_config.empty()) layer.pairing = preset->pairing;
  layer.config.precision = spec.precision.value_or(Precision::kExact);
  if (layer.rotates) ROPE_RETURN_IF_ERROR(kernels::Validate(layer.config));
  return kernels::ReadLayer(std::move(layer), spec.pairing, spec.compat);
}

// REQUIRES: CheckOptions.
absl::StatusOr<DescribeReply> Describe(const kernels::LayerRope& rope,
                                       const DescribeRequest& request) {
  std::shared_ptr<const kernels::ResolvedRope> resolved;
  if (rope.layer.rotates) {
    ROPE_ASSIGN_OR_RETURN(resolved, kernels::Resolve(rope.layer.config, request.head_dim));
    if (resolved->head_dim() != request.head_dim.value_or(resolved->head_dim())) {
      return proto::InvalidField("head_dim", *request.head_dim,
                                 absl::StrCat("the config's ", resolved->head_dim()));
    }
  }
  return kernels::Describe(rope, resolved.get(),
                           {.seq_len = request.seq_len,
                            .positions = request.positions,
                            .sinusoidal = request.sinusoidal && rope.layer.rotates});
}

absl::StatusOr<std::vector<DescribeReply>> DescribeLayers(const DescribeRequest& request) {
  ROPE_RETURN_IF_ERROR(CheckOptions(request));
  ROPE_ASSIGN_OR_RETURN(const kernels::ModelConfig config, ReadModel(request.rope));
  std::vector<std::string> types = {request.rope.layer_type};
  if (types[0].empty() && !request.rope.layer.has_value() && !config.layer_types().empty()) {
    types = config.layer_types();
  }
  std::vector<DescribeReply> replies;
  for (const std::string& type : types) {
    DescribeRequest layer = request;
    layer.rope.layer_type = type;
    ROPE_ASSIGN_OR_RETURN(const kernels::LayerRope rope, ReadRope(config, layer.rope));
    ROPE_ASSIGN_OR_RETURN(DescribeReply reply, Describe(rope, layer));
    reply.config_id = proto::HashId(kernels::CanonicalText(rope));
    replies.push_back(std::move(reply));
  }
  return replies;
}

}  // namespace

std::string PresetText(const std::string& name) {
  const kernels::Preset* const preset = kernels::FindPreset(name);
  return preset == nullptr ? std::string() : preset->config_json;
}

Status UnknownPreset(const std::string& model) {
  return Status(
      StatusCode::kNotFound,
      absl::StrCat("--model: got \"", model, "\", want a preset of this program; --target asks a ",
                   "server for others", proto::DidYouMean(kernels::NearestPreset(model))));
}

Result<std::vector<DescribeReply>> DescribeHere(const DescribeRequest& request) {
  absl::StatusOr<std::vector<DescribeReply>> replies = DescribeLayers(request);
  if (!replies.ok()) return ToStatus(replies.status());
  return *std::move(replies);
}

std::vector<std::string> NotesOf(const RopeSpec& spec) {
  std::vector<std::string> notes;
  const absl::StatusOr<kernels::ModelConfig> config = ReadModel(spec);
  if (!config.ok()) return notes;
  const absl::StatusOr<kernels::LayerRope> rope = ReadRope(*config, spec);
  if (!rope.ok()) return notes;
  for (const kernels::Remark& remark : kernels::RemarksOf(*rope)) {
    const bool warned = std::ranges::count(rope->warnings, remark.text) > 0;
    if (kernels::WeightOf(remark.kind) == kernels::RemarkWeight::kNote && !warned) {
      notes.push_back(remark.text);
    }
  }
  return notes;
}

std::string WithNumbers(absl::string_view difference, double attention_factor,
                        double inv_freq_max_relative) {
  if (attention_factor == 0) return std::string(difference);
  const std::string factor =
      absl::StrFormat("%s (attention factor %.9g", difference, attention_factor);
  if (inv_freq_max_relative == 0) return absl::StrCat(factor, ")");
  if (std::isinf(inv_freq_max_relative)) return absl::StrCat(factor, ", other channels turn)");
  return absl::StrFormat("%s, inv_freq up to %.3g off)", factor, inv_freq_max_relative);
}

}  // namespace rope::client
