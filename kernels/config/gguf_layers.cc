#include "kernels/config/gguf_layers.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/config/gguf_architectures.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

constexpr std::string_view kPattern = "attention.sliding_window_pattern";

absl::StatusOr<std::optional<int64_t>> ReadCount(const GgufFields& fields) {
  ROPE_ASSIGN_OR_RETURN(const std::optional<int64_t> blocks, fields.Integer("block_count"));
  ROPE_ASSIGN_OR_RETURN(const std::optional<int64_t> extra, fields.Integer("nextn_predict_layers"));
  if (!blocks.has_value()) return std::optional<int64_t>();
  if (*blocks < 1 || *blocks > kLayersMax) {
    return fields.Invalid("block_count", StrCat(*blocks), StrCat("1 to ", kLayersMax));
  }
  if (extra.value_or(0) < 0 || extra.value_or(0) >= *blocks) {
    return fields.Invalid("nextn_predict_layers", StrCat(*extra),
                          StrCat("0 to block_count - 1, ", *blocks - 1));
  }
  return std::optional<int64_t>(*blocks - extra.value_or(0));
}

// A list with one flag for each of `count` layers, or for those and the layers of
// nextn_predict_layers; empty if the key is absent or no list.
absl::StatusOr<std::vector<bool>> ReadFlags(const GgufFields& fields, std::string_view key,
                                            int64_t count) {
  if (!fields.IsList(key)) return std::vector<bool>();
  ROPE_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, fields.Integers(key));
  if (static_cast<int64_t>(numbers.size()) < count) {
    return fields.Invalid(key, StrCat(numbers.size(), " elements"),
                          StrCat("one for each of ", count, " layers"));
  }
  std::vector<bool> flags;
  for (int64_t i = 0; i < count; ++i) flags.push_back(numbers[static_cast<size_t>(i)] != 0);
  return flags;
}

// True for each sliding layer; empty if no layer slides.
absl::StatusOr<std::vector<bool>> ReadSliding(const GgufFields& fields, const GgufLayers& layers,
                                              int64_t count) {
  ROPE_ASSIGN_OR_RETURN(const std::optional<int64_t> window,
                        fields.Integer("attention.sliding_window"));
  if (window.has_value() ? *window == 0 : layers.needs_window) return std::vector<bool>();
  ROPE_ASSIGN_OR_RETURN(std::vector<bool> sliding, ReadFlags(fields, kPattern, count));
  if (!sliding.empty()) return sliding;
  int64_t period = layers.period;
  if (!fields.IsList(kPattern)) {
    ROPE_ASSIGN_OR_RETURN(const std::optional<int64_t> given, fields.Integer(kPattern));
    period = given.value_or(period);
    // llama.cpp reads 0 as sliding layers only; a file without a list has to have a rule.
    if (given.has_value() && *given < 1) {
      return fields.Invalid(kPattern, StrCat(*given), "a list, or a period of at least 1");
    }
  }
  if (period == 0) return std::vector<bool>();
  for (int64_t i = 0; i < count; ++i) {
    sliding.push_back(i % period != (layers.full_first ? 0 : period - 1));
  }
  return sliding;
}

// True for each layer with linear attention; empty if there is none.
absl::StatusOr<std::vector<bool>> ReadLinear(const GgufFields& fields, int64_t count) {
  ROPE_ASSIGN_OR_RETURN(std::vector<bool> linear,
                        ReadFlags(fields, "attention.recurrent_layers", count));
  const std::optional<int64_t> usual = GgufFullAttentionInterval(fields.architecture());
  if (!linear.empty() || !usual.has_value()) return linear;
  ROPE_ASSIGN_OR_RETURN(const std::optional<int64_t> given,
                        fields.Integer("full_attention_interval"));
  const int64_t interval = given.value_or(*usual);
  if (interval < 1) {
    return fields.Invalid("full_attention_interval", StrCat(interval), "at least 1");
  }
  for (int64_t i = 0; i < count; ++i) linear.push_back(i % interval != interval - 1);
  return linear;
}

bool IsStill(GgufStill still, int64_t layer, bool slides) {
  switch (still) {
    case GgufStill::kNone:
      return false;
    case GgufStill::kFull:
      return !slides;
    case GgufStill::kLastOfFour:
      return layer % 4 == 3;
    case GgufStill::kFirstOfFour:
      return layer % 4 == 0;
  }
  return false;
}

// Sets no_rope[i] where `flags` has `value`.
void Mark(const std::vector<bool>& flags, bool value, std::vector<bool>& no_rope) {
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i] == value) no_rope[i] = true;
  }
}

// Adds the layers that a key of the file excludes.
absl::Status MarkByKeys(const GgufFields& fields, int64_t count, std::vector<bool>& no_rope) {
  ROPE_ASSIGN_OR_RETURN(const std::vector<bool> pattern,
                        ReadFlags(fields, "attention.rope_pattern", count));
  Mark(pattern, false, no_rope);
  ROPE_ASSIGN_OR_RETURN(const std::vector<bool> heads,
                        ReadFlags(fields, "attention.head_count_kv", count));
  Mark(heads, false, no_rope);
  ROPE_ASSIGN_OR_RETURN(const std::optional<bool> finetuned, fields.Bool("rope.scaling.finetuned"));
  const std::string& name = fields.architecture();
  const bool switched = name == "granite" || name == "granitehybrid" || name == "graniteswitch";
  if (switched && !finetuned.value_or(true)) no_rope.assign(no_rope.size(), true);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LayerList> ReadGgufLayers(const GgufFields& fields) {
  LayerList list;
  ROPE_ASSIGN_OR_RETURN(list.count, ReadCount(fields));
  if (!list.count.has_value()) return list;
  const auto count = static_cast<size_t>(*list.count);
  list.no_rope.resize(count);
  std::vector<bool> sliding;
  if (const GgufLayers* const layers = GgufLayersOf(fields.architecture()); layers != nullptr) {
    ROPE_ASSIGN_OR_RETURN(sliding, ReadSliding(fields, *layers, *list.count));
    for (size_t i = 0; i < sliding.size(); ++i) {
      list.types.Add(sliding[i] ? layers->sliding_type : kFullAttention);
    }
    // Without sliding layers all rotate, except in SmolLM3, which has no window.
    if (!sliding.empty() || fields.architecture() == "smollm3") {
      for (size_t i = 0; i < count; ++i) {
        const bool slides = !sliding.empty() && sliding[i];
        list.no_rope[i] = IsStill(layers->still, static_cast<int64_t>(i), slides);
      }
    }
  }
  ROPE_ASSIGN_OR_RETURN(const std::vector<bool> linear, ReadLinear(fields, *list.count));
  if (!linear.empty()) list.types = {};
  for (const bool is_linear : linear) {
    list.types.Add(is_linear ? "linear_attention" : kFullAttention);
  }
  Mark(linear, true, list.no_rope);
  ROPE_RETURN_IF_ERROR(MarkByKeys(fields, *list.count, list.no_rope));
  return list;
}

}  // namespace rope::kernels
