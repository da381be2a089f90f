#include "kernels/describe.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <numbers>
#include <string_view>
#include <type_traits>
#include <utility>

#include "kernels/check.h"
#include "kernels/compat/attention_scale.h"
#include "kernels/compat/rope_readings.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

absl::Status CheckSinusoidal(const LayerRope& rope, const ResolvedRope& resolved) {
  const auto refuse = [](std::string_view got, std::string_view want) {
    return InvalidField("sinusoidal", StrCat("it with ", got), want);
  };
  if (resolved.attention_factor() != 1) {
    return refuse(StrCat("attention factor ", resolved.attention_factor()),
                  "an attention factor of 1");
  }
  if (resolved.DependsOnSide()) return refuse("xpos", "an embedding without it");
  if (resolved.DependsOnDType()) return refuse("precision hf", "precision exact");
  if (!rope.pairing.has_value()) {
    return InvalidField("pairing", "nothing", "half or interleaved: this config does not say");
  }
  return absl::OkStatus();
}

void AddSinusoid(Pairing pairing, Row& row) {
  if (pairing == Pairing::kHalf) {
    row.sinusoid = row.sin;
    row.sinusoid.insert(row.sinusoid.end(), row.cos.begin(), row.cos.end());
    return;
  }
  for (size_t i = 0; i < row.sin.size(); ++i) {
    row.sinusoid.push_back(row.sin[i]);
    row.sinusoid.push_back(row.cos[i]);
  }
}

void AddNumbers(const ResolvedRope& resolved, DescribeReply& reply) {
  const ResolvedRope::AtSeqLen at = resolved.Evaluate(reply.seq_len);
  reply.config = resolved.config();
  reply.depends_on_seq_len = resolved.DependsOnSeqLen();
  reply.attention_factor = resolved.attention_factor();
  for (const InverseFrequency frequency : at.inv_freq) {
    reply.inv_freq.push_back(static_cast<double>(frequency));
    reply.wavelengths.push_back(
        frequency == 0
            ? std::numeric_limits<double>::infinity()
            : static_cast<double>(2 * std::numbers::pi_v<long double> / std::abs(frequency)));
  }
  reply.scaling = ScalingOf(resolved, at);
  reply.ramp = RampOf(resolved);
  constexpr int64_t kPositionMax = int64_t{1} << 31;
  const int64_t length = resolved.config().max_position_embeddings.value_or(reply.seq_len);
  reply.float32_angle_position = std::min(length - 1, kPositionMax);
  reply.float32_angle_error = Float32AngleError(at, reply.float32_angle_position);
}

// The scale of attention by the config as it is written.
void AddScale(const LayerRope& rope, DescribeReply& reply) {
  const double factor = rope.layer.rotates ? AttentionFactor(rope.stated) : 1;
  const AttentionScale scale = ScaleOf(rope.layer, rope.stated, factor);
  if (scale.softmax != 1 || scale.temperature_beta != 0) reply.scale = scale;
  reply.scale_readings = ScaleReadings(rope.layer, rope.stated, scale, factor);
}

}  // namespace

std::vector<Remark> RemarksOf(const LayerRope& rope) {
  std::vector<Remark> remarks = rope.layer.remarks;
  if (!rope.layer.rotates) return remarks;
  for (Remark& remark : ScaleRemarks(rope.layer, rope.stated)) remarks.push_back(std::move(remark));
  for (Remark& remark : Remarks(rope.stated)) {
    // Llama 4 is published so.
    if (remark.kind == RemarkKind::kEqualFrequencyFactors &&
        rope.layer.names.model_type.starts_with("llama4")) {
      continue;
    }
    remarks.push_back(std::move(remark));
  }
  return remarks;
}

namespace {

// Whether a reply repeats the remark: warnings, that the layer does not rotate, and settings
// without effect unless a model's file has them, as published files do.
bool IsRepeated(const Remark& remark, const LayerConfig& layer) {
  switch (remark.kind) {
    case RemarkKind::kNoRotation:
    case RemarkKind::kUnrotatedLayers:
      return !layer.rotates;
    case RemarkKind::kUnusedSetting:
      return layer.names.model_type.empty();
    default:
      return WeightOf(remark.kind) > RemarkWeight::kNote;
  }
}

}  // namespace

absl::StatusOr<LayerRope> ReadLayer(LayerConfig layer, std::optional<Pairing> pairing,
                                    Compat compat) {
  LayerRope rope;
  rope.stated = layer.config;
  rope.pairing = pairing.has_value() ? pairing : layer.pairing;
  if (pairing.has_value() && layer.pairing.has_value() && pairing != layer.pairing) {
    rope.warnings.push_back(StrCat("pairing: taken as ", Name(*pairing),
                                   " because the request says so; this model's checkpoints use ",
                                   Name(*layer.pairing)));
  }
  rope.layer = std::move(layer);
  for (Remark& remark : RemarksOf(rope)) {
    if (IsRepeated(remark, rope.layer)) rope.warnings.push_back(std::move(remark.text));
  }
  if (!rope.layer.rotates) return rope;
  absl::StatusOr<CompatConfig> read = ApplyCompat(rope.stated, compat, rope.layer.names);
  ROPE_RETURN_IF_ERROR(read.status());
  rope.layer.config = std::move(read->config);
  for (std::string& change : read->changes) rope.warnings.push_back(std::move(change));
  return rope;
}

int64_t SeqLenOf(const DescribeOptions& options) {
  int64_t length = 1;
  for (const int64_t position : options.positions) length = std::max(length, position + 1);
  return options.seq_len.value_or(length);
}

DescribedRows::DescribedRows(const LayerRope& rope, const ResolvedRope& resolved,
                             const DescribeOptions& options)
    : source_({.frequencies = resolved.ForSeqLen(SeqLenOf(options), Multiplier::kAttentionFactor,
                                                 RowUse{.dtype = options.row_dtype}),
               .columns = resolved.rotary_dim() / 2}) {
  if (options.sinusoidal) sinusoidal_ = rope.pairing;
}

Row DescribedRows::At(int64_t position) const {
  std::vector<CosSin> columns;
  ReadRow(source_, position, 0, columns);
  Row row;
  row.position = position;
  row.cos.reserve(columns.size());
  row.sin.reserve(columns.size());
  for (const CosSin& column : columns) {
    row.cos.push_back(column.cos);
    row.sin.push_back(column.sin);
  }
  if (sinusoidal_.has_value()) AddSinusoid(*sinusoidal_, row);
  return row;
}

absl::StatusOr<DescribeReply> Describe(const LayerRope& rope, const ResolvedRope* resolved,
                                       const DescribeOptions& options) {
  ROPE_CHECK((resolved != nullptr) == rope.layer.rotates);
  DescribeReply reply;
  reply.pairing = rope.pairing;
  if (rope.pairing == rope.layer.pairing) reply.channel_order = rope.layer.channel_order;
  reply.layer_type = rope.layer.layer_type;
  reply.rotates = rope.layer.rotates;
  reply.seq_len = SeqLenOf(options);
  reply.warnings = rope.warnings;
  AddScale(rope, reply);
  if (resolved == nullptr) return reply;
  if (options.sinusoidal) ROPE_RETURN_IF_ERROR(CheckSinusoidal(rope, *resolved));
  AddNumbers(*resolved, reply);
  const DescribedRows rows(rope, *resolved, options);
  for (const int64_t position : options.positions) reply.rows.push_back(rows.At(position));
  reply.readings = Readings(rope.stated, rope.layer.names, *resolved, reply.seq_len);
  return reply;
}

namespace {

// Raise the number when the text changes: old ids then name nothing.
constexpr std::string_view kFormat = "rope.v1/config_id/3\n";

// Writes a line for each value that is set: its name, "=", the value.
class Lines {
 public:
  template <typename T>
  void Add(std::string_view name, const T& value) {
    text_.append(name).append("=");
    Write(value);
    text_.append("\n");
  }

  template <typename T>
  void Add(std::string_view name, const std::optional<T>& value) {
    if (value.has_value()) Add(name, *value);
  }

  template <typename T>
  void Add(std::string_view name, const std::vector<T>& list) {
    if (!list.empty()) AddAll(name, list);
  }

  void Add(std::string_view name, const Mrope& mrope) {
    if (!mrope.axes.empty()) return AddAll(name, mrope.axes);
    AddAll(name, mrope.section);
    Add("mrope_layout", mrope.layout);
  }

  void Add(std::string_view name, const XPos& xpos) {
    Add(name, xpos.scale_base);
    Add("xpos_centre", xpos.centre);
  }

  std::string Take() { return std::move(text_); }

 private:
  template <typename List>
  void AddAll(std::string_view name, const List& list) {
    text_.append(name).append("=");
    for (const auto value : list) {
      Write(value);
      text_.append(",");
    }
    text_.append("\n");
  }

  // An enum is its number: the order of its values is part of the format.
  template <typename T>
  void Write(const T& value) {
    std::array<char, 64> digits;
    char* const begin = digits.data();
    char* const end = begin + digits.size();
    if constexpr (std::is_floating_point_v<T>) {
      text_.append(begin, std::to_chars(begin, end, value, std::chars_format::hex).ptr);
    } else {
      text_.append(begin, std::to_chars(begin, end, static_cast<int64_t>(value)).ptr);
    }
  }

  // A layer type may hold any byte.
  void Write(const std::string& value) {
    Write(value.size());
    text_.append(":").append(value);
  }

  std::string text_ = std::string(kFormat);
};

// The names of all fields, so that a field that is added does not compile without its line.
void AddConfig(const RopeConfig& config, Lines& lines) {
  const auto& [rope_type, rope_theta, head_dim, rotary_dim, partial_rotary_factor,
               max_position_embeddings, original_max_position_embeddings, factor, attention_factor,
               mscale, mscale_all_dim, beta_fast, beta_slow, truncate, low_freq_factor,
               high_freq_factor, short_factor, long_factor, mrope, rotary_offset, attn_factor, ramp,
               longrope_branch, alpha, mixed_b, xpos, inv_freq, seq_len_policy, reverse,
               precision] = config;
  lines.Add("rope_type", rope_type);
  lines.Add("rope_theta", rope_theta);
  lines.Add("head_dim", head_dim);
  lines.Add("rotary_dim", rotary_dim);
  lines.Add("partial_rotary_factor", partial_rotary_factor);
  lines.Add("max_position_embeddings", max_position_embeddings);
  lines.Add("original_max_position_embeddings", original_max_position_embeddings);
  lines.Add("factor", factor);
  lines.Add("attention_factor", attention_factor);
  lines.Add("mscale", mscale);
  lines.Add("mscale_all_dim", mscale_all_dim);
  lines.Add("beta_fast", beta_fast);
  lines.Add("beta_slow", beta_slow);
  lines.Add("truncate", truncate);
  lines.Add("low_freq_factor", low_freq_factor);
  lines.Add("high_freq_factor", high_freq_factor);
  lines.Add("short_factor", short_factor);
  lines.Add("long_factor", long_factor);
  lines.Add("mrope", mrope);
  lines.Add("rotary_offset", rotary_offset);
  lines.Add("attn_factor", attn_factor);
  lines.Add("ramp", ramp);
  lines.Add("longrope_branch", longrope_branch);
  lines.Add("alpha", alpha);
  lines.Add("mixed_b", mixed_b);
  lines.Add("xpos", xpos);
  lines.Add("inv_freq", inv_freq);
  lines.Add("seq_len_policy", seq_len_policy);
  lines.Add("reverse", reverse);
  lines.Add("precision", precision);
}

}  // namespace

std::string CanonicalText(const LayerRope& rope) {
  Lines lines;
  AddConfig(rope.layer.config, lines);
  lines.Add("pairing", rope.pairing);
  lines.Add("channel_order", rope.layer.channel_order);
  lines.Add("layer_type", rope.layer.layer_type);
  lines.Add("rotates", rope.layer.rotates);
  return lines.Take();
}

}  // namespace rope::kernels
