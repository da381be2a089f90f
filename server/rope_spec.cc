#include "server/rope_spec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "kernels/status_macros.h"
#include "server/error.h"

namespace rope::server {
namespace {

template <typename T>
std::optional<T> Optional(bool present, T value) {
  return present ? std::optional<T>(value) : std::nullopt;
}

absl::StatusOr<std::optional<kernels::Mrope>> ReadMrope(const v1::RopeConfig& message) {
  if (message.mrope_section_size() == 0) {
    if (message.mrope_interleaved()) {
      return InvalidField("mrope_interleaved", "true", "mrope_section beside it");
    }
    return std::nullopt;
  }
  if (message.mrope_section_size() != 3) {
    return InvalidField("mrope_section", absl::StrCat(message.mrope_section_size(), " counts"),
                        "three");
  }
  kernels::Mrope mrope;
  for (int i = 0; i < 3; ++i) mrope.section[static_cast<size_t>(i)] = message.mrope_section(i);
  mrope.layout = message.mrope_interleaved() ? kernels::Mrope::Layout::kInterleaved
                                             : kernels::Mrope::Layout::kSections;
  return mrope;
}

}  // namespace

absl::StatusOr<kernels::RopeConfig> ReadRopeConfig(const v1::RopeConfig& m) {
  kernels::RopeConfig config;
  if (!m.rope_type().empty()) {
    ROPE_ASSIGN_OR_RETURN(config.rope_type, kernels::ParseRopeType(m.rope_type()));
  }
  if (m.has_rope_theta()) config.rope_theta = m.rope_theta();
  config.head_dim = Optional(m.has_head_dim(), int64_t{m.head_dim()});
  config.rotary_dim = Optional(m.has_rotary_dim(), int64_t{m.rotary_dim()});
  config.partial_rotary_factor = Optional(m.has_partial_rotary_factor(), m.partial_rotary_factor());
  config.max_position_embeddings =
      Optional(m.has_max_position_embeddings(), int64_t{m.max_position_embeddings()});
  config.original_max_position_embeddings = Optional(m.has_original_max_position_embeddings(),
                                                     int64_t{m.original_max_position_embeddings()});
  config.factor = Optional(m.has_factor(), m.factor());
  config.attention_factor = Optional(m.has_attention_factor(), m.attention_factor());
  config.mscale = Optional(m.has_mscale(), m.mscale());
  config.mscale_all_dim = Optional(m.has_mscale_all_dim(), m.mscale_all_dim());
  config.beta_fast = Optional(m.has_beta_fast(), m.beta_fast());
  config.beta_slow = Optional(m.has_beta_slow(), m.beta_slow());
  config.truncate = Optional(m.has_truncate(), m.truncate());
  config.low_freq_factor = Optional(m.has_low_freq_factor(), m.low_freq_factor());
  config.high_freq_factor = Optional(m.has_high_freq_factor(), m.high_freq_factor());
  config.short_factor.assign(m.short_factor().begin(), m.short_factor().end());
  config.long_factor.assign(m.long_factor().begin(), m.long_factor().end());
  ROPE_ASSIGN_OR_RETURN(config.mrope, ReadMrope(m));
  return config;
}

v1::RopeConfig WriteRopeConfig(const kernels::RopeConfig& config) {
  v1::RopeConfig m;
  m.set_rope_type(std::string(kernels::Name(config.rope_type)));
  m.set_rope_theta(config.rope_theta);
  if (config.head_dim) m.set_head_dim(*config.head_dim);
  if (config.rotary_dim) m.set_rotary_dim(*config.rotary_dim);
  if (config.partial_rotary_factor) m.set_partial_rotary_factor(*config.partial_rotary_factor);
  if (config.max_position_embeddings) {
    m.set_max_position_embeddings(*config.max_position_embeddings);
  }
  if (config.original_max_position_embeddings) {
    m.set_original_max_position_embeddings(*config.original_max_position_embeddings);
  }
  if (config.factor) m.set_factor(*config.factor);
  if (config.attention_factor) m.set_attention_factor(*config.attention_factor);
  if (config.mscale) m.set_mscale(*config.mscale);
  if (config.mscale_all_dim) m.set_mscale_all_dim(*config.mscale_all_dim);
  if (config.beta_fast) m.set_beta_fast(*config.beta_fast);
  if (config.beta_slow) m.set_beta_slow(*config.beta_slow);
  if (config.truncate) m.set_truncate(*config.truncate);
  if (config.low_freq_factor) m.set_low_freq_factor(*config.low_freq_factor);
  if (config.high_freq_factor) m.set_high_freq_factor(*config.high_freq_factor);
  m.mutable_short_factor()->Add(config.short_factor.begin(), config.short_factor.end());
  m.mutable_long_factor()->Add(config.long_factor.begin(), config.long_factor.end());
  if (config.mrope) {
    for (const int64_t count : config.mrope->section) m.add_mrope_section(count);
    m.set_mrope_interleaved(config.mrope->layout == kernels::Mrope::Layout::kInterleaved);
  }
  return m;
}

v1::Pairing WritePairing(std::optional<kernels::Pairing> pairing) {
  if (!pairing.has_value()) return v1::PAIRING_UNSPECIFIED;
  return *pairing == kernels::Pairing::kHalf ? v1::PAIRING_HALF : v1::PAIRING_INTERLEAVED;
}

absl::StatusOr<std::optional<kernels::Pairing>> ReadPairing(v1::Pairing pairing) {
  switch (pairing) {
    case v1::PAIRING_UNSPECIFIED:
      return std::nullopt;
    case v1::PAIRING_HALF:
      return kernels::Pairing::kHalf;
    case v1::PAIRING_INTERLEAVED:
      return kernels::Pairing::kInterleaved;
    default:
      return InvalidField("rope.pairing", static_cast<int>(pairing),
                          "PAIRING_HALF or PAIRING_INTERLEAVED");
  }
}

std::string SpecKey(const v1::RopeSpec& spec) {
  std::string key;
  google::protobuf::io::StringOutputStream stream(&key);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  spec.SerializeToCodedStream(&coded);
  coded.Trim();
  return key;
}

absl::Status CheckSpec(const v1::RopeSpec& spec) {
  std::vector<std::string> given;
  if (!spec.model().empty()) given.push_back("model");
  if (!spec.config_id().empty()) given.push_back("config_id");
  if (spec.has_config()) given.push_back("config");
  if (!spec.config_json().empty()) given.push_back("config_json");
  if (given.size() != 1) {
    return InvalidField("rope", given.empty() ? "nothing" : absl::StrJoin(given, " and "),
                        "exactly one of model, config_id, config and config_json");
  }
  if (spec.has_layer() && !spec.layer_type().empty()) {
    return InvalidField("rope", "layer and layer_type", "at most one of them");
  }
  if (!spec.config_id().empty() && (spec.has_layer() || !spec.layer_type().empty() ||
                                    spec.pairing() != v1::PAIRING_UNSPECIFIED)) {
    return InvalidField("rope.config_id", "it beside layer, layer_type or pairing",
                        "it alone: it names them too");
  }
  return absl::OkStatus();
}

kernels::LayerChoice ChoiceOf(const v1::RopeSpec& spec) {
  kernels::LayerChoice choice;
  if (spec.has_layer()) choice.layer = spec.layer();
  choice.layer_type = spec.layer_type();
  return choice;
}

}  // namespace rope::server
