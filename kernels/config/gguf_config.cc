#include "kernels/config/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/config/gguf_architectures.h"
#include "kernels/config/gguf_fields.h"
#include "kernels/config/gguf_layers.h"
#include "kernels/config/gguf_scaling.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

constexpr std::string_view kSections = "rope.dimension_sections";

// The largest number of a list of head counts; a layer without attention has 0. `first`, if not
// null, gets that of the first layer.
absl::StatusOr<std::optional<int64_t>> ReadHeads(const GgufFields& fields, std::string_view key,
                                                 std::optional<int64_t>* first = nullptr) {
  ROPE_ASSIGN_OR_RETURN(const std::vector<int64_t> counts, fields.Integers(key));
  if (counts.empty()) return std::optional<int64_t>();
  for (const int64_t count : counts) {
    if (count < 0) return fields.Invalid(key, StrCat(count), "at least 0");
  }
  if (first != nullptr) *first = counts.front();
  const int64_t most = *std::max_element(counts.begin(), counts.end());
  return most == 0 ? std::nullopt : std::optional<int64_t>(most);
}

// Whether all k heads share one rotated slice (multi-head latent attention).
bool SharesSlice(const GgufFields& fields) {
  return fields.Has("attention.key_length_mla") || fields.Has("attention.kv_lora_rank");
}

// With a shared slice, heads have other channels that the conversion stores apart, and the slice is
// rope.dimension_count wide. Otherwise attention.key_length, else embedding_length divided by the
// head count of layer 0.
absl::StatusOr<std::optional<int64_t>> ReadHeadDim(const GgufFields& fields) {
  if (SharesSlice(fields)) return fields.Integer("rope.dimension_count");
  if (fields.Has("attention.key_length")) return fields.Integer("attention.key_length");
  ROPE_ASSIGN_OR_RETURN(const std::optional<int64_t> width, fields.Integer("embedding_length"));
  std::optional<int64_t> first;
  ROPE_ASSIGN_OR_RETURN(const std::optional<int64_t> most,
                        ReadHeads(fields, "attention.head_count", &first));
  const int64_t heads = first.value_or(0) == 0 ? most.value_or(0) : *first;
  if (!width.has_value() || heads == 0) return std::optional<int64_t>();
  return std::optional<int64_t>(*width / heads);
}

void SetRotaryDim(std::optional<int64_t> rotary_dim, RopeConfig& config) {
  if (rotary_dim != config.head_dim) config.rotary_dim = rotary_dim;
}

absl::StatusOr<double> ReadBase(const GgufFields& fields, LayerConfig& entry) {
  ROPE_ASSIGN_OR_RETURN(const std::optional<double> base, fields.Number("rope.freq_base"));
  if (base.has_value()) return *base;
  entry.remarks.push_back(
      {RemarkKind::kDefaultAssumed,
       StrCat(fields.PathOf("rope.freq_base"), " absent, taken as 10000, as llama.cpp does")});
  return 10000;
}

// Three axes, of an architecture that has them. The fourth number is the count of an axis that no
// model uses.
absl::StatusOr<std::optional<Mrope>> ReadMrope(const GgufFields& fields, GgufRope rope) {
  ROPE_ASSIGN_OR_RETURN(const std::vector<int64_t> counts, fields.Integers(kSections));
  const bool sections = counts.size() > 1 && counts[0] > 0 && counts[1] > 0;
  const bool optional = rope == GgufRope::kNormOrMrope || rope == GgufRope::kNeoxOrMrope;
  if (rope == GgufRope::kNone || rope == GgufRope::kNorm || rope == GgufRope::kNeox ||
      (optional && !sections)) {
    return std::optional<Mrope>();
  }
  if (counts.size() < 3 || counts.size() > 4 || (counts.size() == 4 && counts[3] != 0)) {
    return fields.Invalid(kSections,
                          counts.size() == 4 ? "four axes" : StrCat(counts.size(), " numbers"),
                          "three counts of frequencies (t, h, w), and 0");
  }
  Mrope mrope;
  std::copy_n(counts.begin(), mrope.section.size(), mrope.section.begin());
  if (rope == GgufRope::kImrope) mrope.layout = Mrope::Layout::kInterleaved;
  return std::optional<Mrope>(mrope);
}

Pairing PairingOf(GgufRope rope, bool has_axes) {
  if (rope == GgufRope::kNorm) return Pairing::kInterleaved;
  if (rope == GgufRope::kNormOrMrope && !has_axes) return Pairing::kInterleaved;
  return Pairing::kHalf;
}

// Sets what follows from the architecture's kind of rotation.
absl::Status ReadRotation(const GgufFields& fields, LayerConfig& entry) {
  const std::optional<GgufRope> rope = GgufRopeOf(fields.architecture());
  if (!rope.has_value()) {
    entry.remarks.push_back({RemarkKind::kUnknownModelType,
                             StrCat("general.architecture ", ShowText(fields.architecture()),
                                    " is unknown: the pairing of its tensors is not known, and "
                                    "layers are taken as equal")});
    return absl::OkStatus();
  }
  ROPE_ASSIGN_OR_RETURN(entry.config.mrope, ReadMrope(fields, *rope));
  entry.rotates = *rope != GgufRope::kNone;
  if (entry.rotates) {
    entry.pairing = PairingOf(*rope, entry.config.mrope.has_value());
  } else {
    entry.remarks.push_back(
        {RemarkKind::kNoRotation, StrCat("llama.cpp does not rotate in ", fields.architecture(),
                                         "; tensors come back unchanged")});
  }
  return absl::OkStatus();
}

// Base, dimensions, lengths and rotation, without scaling.
absl::StatusOr<LayerConfig> ReadUnscaled(const GgufFields& fields) {
  LayerConfig entry;
  RopeConfig& config = entry.config;
  ROPE_ASSIGN_OR_RETURN(config.rope_theta, ReadBase(fields, entry));
  ROPE_ASSIGN_OR_RETURN(config.head_dim, ReadHeadDim(fields));
  ROPE_ASSIGN_OR_RETURN(const std::optional<int64_t> rotary_dim,
                        fields.Integer("rope.dimension_count"));
  if (rotary_dim.has_value()) SetRotaryDim(rotary_dim, config);
  ROPE_ASSIGN_OR_RETURN(config.max_position_embeddings, fields.Integer("context_length"));
  ROPE_ASSIGN_OR_RETURN(config.original_max_position_embeddings,
                        fields.Integer("rope.scaling.original_context_length"));
  ROPE_RETURN_IF_ERROR(ReadRotation(fields, entry));
  return entry;
}

// The entry of sliding layers, from the unscaled one.
absl::StatusOr<LayerConfig> ReadSliding(const GgufFields& fields, const GgufLayers& layers,
                                        LayerConfig entry) {
  RopeConfig& config = entry.config;
  ROPE_ASSIGN_OR_RETURN(const std::optional<double> base, fields.Number("rope.freq_base_swa"));
  if (base.has_value()) {
    config.rope_theta = *base;
  } else if (layers.sliding_base.has_value()) {
    config.rope_theta = *layers.sliding_base;
    entry.remarks.push_back(
        {RemarkKind::kDefaultAssumed,
         StrCat(fields.PathOf("rope.freq_base_swa"), " absent, taken as ", config.rope_theta,
                ", as llama.cpp does for ", fields.architecture())});
  }
  const std::optional<int64_t> full =
      config.rotary_dim.has_value() ? config.rotary_dim : config.head_dim;
  ROPE_ASSIGN_OR_RETURN(const std::optional<int64_t> head_dim,
                        fields.Integer("attention.key_length_swa"));
  if (head_dim.has_value()) config.head_dim = head_dim;
  ROPE_ASSIGN_OR_RETURN(const std::optional<int64_t> rotary_dim,
                        fields.Integer("rope.dimension_count_swa"));
  config.rotary_dim.reset();
  SetRotaryDim(rotary_dim.has_value() ? rotary_dim : full, config);
  if (layers.sliding_scaled && !layers.factors_on_full) {
    ROPE_RETURN_IF_ERROR(ReadGgufScaling(fields, entry));
  }
  return entry;
}

// One entry if all layers rotate alike, else one for full and one for sliding attention.
absl::StatusOr<std::vector<LayerConfig>> ReadEntries(const GgufFields& fields,
                                                     const LayerList& list) {
  ROPE_ASSIGN_OR_RETURN(const LayerConfig unscaled, ReadUnscaled(fields));
  const GgufLayers* const layers = GgufLayersOf(fields.architecture());
  LayerConfig full = unscaled;
  if (layers != nullptr && layers->half_on_full) {
    const RopeConfig& config = unscaled.config;
    const std::optional<int64_t> whole =
        config.rotary_dim.has_value() ? config.rotary_dim : config.head_dim;
    if (whole.has_value()) full.config.rotary_dim = *whole / 2;
  }
  ROPE_RETURN_IF_ERROR(ReadGgufScaling(fields, full));
  const bool slides = layers != nullptr && list.types.Find(layers->sliding_type).has_value();
  if (!slides) return std::vector<LayerConfig>{std::move(full)};
  ROPE_ASSIGN_OR_RETURN(LayerConfig sliding, ReadSliding(fields, *layers, unscaled));
  if (sliding.config == full.config) return std::vector<LayerConfig>{std::move(full)};
  full.layer_type = kFullAttention;
  sliding.layer_type = layers->sliding_type;
  return std::vector<LayerConfig>{std::move(full), std::move(sliding)};
}

// Warns if a rope tensor may be in a part that was not read.
absl::Status CheckParts(const GgufHeader& header, std::vector<LayerConfig>& entries) {
  ROPE_ASSIGN_OR_RETURN(const int64_t parts, GgufPartsOf(header));
  if (parts == 1 || header.all_parts || !header.tensors.empty()) return absl::OkStatus();
  for (LayerConfig& entry : entries) {
    entry.remarks.push_back(
        {RemarkKind::kMissingPart, StrCat("the model is split into ", parts,
                                          " files, of which not all were read: if another one has "
                                          "rope_freqs or rope_factors, the frequencies differ")});
  }
  return absl::OkStatus();
}

absl::Status CheckIsFirstPart(const GgufFields& fields) {
  ROPE_ASSIGN_OR_RETURN(const std::optional<int64_t> part, fields.Integer("split.no"));
  if (part.value_or(0) == 0) return absl::OkStatus();
  return fields.Invalid("split.no", StrCat(*part), "0, the part that has the metadata");
}

}  // namespace

absl::StatusOr<int64_t> GgufPartsOf(const GgufHeader& header) {
  const auto found = header.values.find("split.count");
  if (found == header.values.end()) return 1;
  const GgufValue& value = found->second;
  const bool integer = value.kind == GgufValue::Kind::kInteger && !value.list;
  constexpr int64_t kMost = 65535;
  if (integer && value.integers.front() >= 1 && value.integers.front() <= kMost) {
    return value.integers.front();
  }
  return InvalidField("split.count", integer ? StrCat(value.integers.front()) : "another type",
                      StrCat("a number from 1 to ", kMost));
}

absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufHeader& header) {
  ROPE_ASSIGN_OR_RETURN(const GgufFields fields, GgufFields::Of(header));
  ROPE_RETURN_IF_ERROR(CheckIsFirstPart(fields));
  ROPE_ASSIGN_OR_RETURN(LayerList list, ReadGgufLayers(fields));
  ModelConfig::Parts parts;
  ROPE_ASSIGN_OR_RETURN(parts.entries, ReadEntries(fields, list));
  ROPE_RETURN_IF_ERROR(CheckParts(header, parts.entries));
  ROPE_ASSIGN_OR_RETURN(parts.num_heads, ReadHeads(fields, "attention.head_count"));
  ROPE_ASSIGN_OR_RETURN(parts.num_kv_heads, ReadHeads(fields, "attention.head_count_kv"));
  if (!parts.num_kv_heads.has_value()) parts.num_kv_heads = parts.num_heads;
  if (SharesSlice(fields)) parts.num_kv_heads = 1;
  parts.num_layers = list.count;
  parts.layers = std::move(list.types);
  parts.no_rope = std::move(list.no_rope);
  return ModelConfig::FromParts(std::move(parts));
}

}  // namespace rope::kernels
