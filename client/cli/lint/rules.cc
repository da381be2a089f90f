#include "client/cli/lint/rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace rope::client {
namespace {

using enum Weight;

constexpr Rule kRules[] = {
    {kSyntax, kError, "The file is no JSON object."},
    {kMissingValue, kError, "A value that the rotation needs is absent."},
    {kInvalidValue, kError, "A value has the wrong type, is out of range, or contradicts another."},
    {kNotSupported, kError, "This program does not compute the rotation of the model."},
    {"unknown-layer-type", kError, "Rope parameters are given for a layer type that no layer has."},
    {"sizes-do-not-divide", kError, "num_attention_heads does not divide hidden_size."},
    {"unknown-model-type", kWarning, "Nothing is known of the model_type."},
    {"near-miss-key", kWarning, "A key that is not read nearly spells one that is."},
    {"remote-code", kWarning, "The model's own code changes the rotation."},
    {"overridden-value", kWarning, "A value is not used, because another place decides."},
    {"no-effect", kWarning, "A scaling is given, and rope_type does not use it."},
    {"factor-below-one", kWarning, "A factor below 1 turns frequencies faster."},
    {"equal-frequency-factors", kWarning, "llama3 blends nothing: its two edges are one."},
    {"no-extension", kWarning, "llama3 scales for a length that the model does not have."},
    {"no-original-length", kWarning, "original_max_position_embeddings is absent."},
    {"no-base", kWarning, "A scaling is given, and no rope_theta."},
    {"unusable-parameters", kWarning, "Hugging Face's code fails on these parameters."},
    {"lone-mscale", kWarning, "Only one of mscale and mscale_all_dim is given."},
    {"missing-part", kWarning, "Not all files of a split GGUF model were read."},
    {"lost-scaling", kWarning, "A GGUF file has a longer context, and no scaling for it."},
    {kReadDifferently, kReading, "An engine computes other frequencies or another factor."},
    {kScaledDifferently, kReading, "An engine scales the softmax, q or the logits differently."},
    {kNoSuchRotation, kReading, "An engine does not have this rotation."},
    {kVersionNotCompared, kReading, "The version that was asked for was never compared."},
    {"default-assumed", kNote, "An absent value is taken from the config class or a formula."},
    {"rounded-ramp", kNote, "truncate is absent, so yarn's edges are rounded."},
    {"unrotated-layers", kNote, "Some layers do not rotate."},
    {"no-rotation", kNote, "The model has no rotary embedding."},
    {"unknown-key", kNote, "A key beside the rope parameters is not read."},
    {"unused-setting", kNote, "A setting has no effect with this rope_type."},
    {"length-ratio", kNote, "factor is not the ratio of the two lengths."},
    {"explicit-numbers", kNote, "Explicit numbers replace the result of a formula."},
    {"rotary-channels", kNote, "The number of rotated channels is rounded, or passes head_dim."},
    {"top-level-parameters", kNote, "The rope parameters are the file itself."},
    {"no-head-dim", kNote, "Without head_dim no engine's reading is compared."},
    {"softmax-scale", kNote, "The scale of the softmax has a factor beside the rotation."},
    {kTowerNotSupported, kNote, "This program does not compute the rotation of a sub-config."},
};

}  // namespace

absl::string_view Name(Weight weight) {
  switch (weight) {
    case Weight::kNote:
      return "note";
    case Weight::kReading:
      return "reading";
    case Weight::kWarning:
      return "warning";
    case Weight::kError:
      break;
  }
  return "error";
}

absl::Span<const Rule> Rules() {
  return kRules;
}

const Rule* FindRule(absl::string_view id) {
  const auto* const found = std::find_if(std::begin(kRules), std::end(kRules),
                                         [id](const Rule& rule) { return rule.id == id; });
  return found == std::end(kRules) ? nullptr : found;
}

const Rule& RuleOf(absl::string_view id) {
  const Rule* const rule = FindRule(id);
  ROPE_CHECK(rule != nullptr);
  return *rule;
}

const Rule& RuleOf(kernels::RemarkKind kind) {
  const std::string_view id = kernels::Name(kind);
  return RuleOf(absl::string_view(id.data(), id.size()));
}

std::string HelpLink(const Rule& rule) {
  return absl::StrCat("client/cli/lint/RULES.md#", rule.id);
}

}  // namespace rope::client
