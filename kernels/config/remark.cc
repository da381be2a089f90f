#include "kernels/config/remark.h"

#include <iterator>

#include "kernels/check.h"

namespace rope::kernels {
namespace {

using enum RemarkKind;
using enum RemarkWeight;

struct KindFacts {
  RemarkKind kind;
  std::string_view name;
  RemarkWeight weight;
};

constexpr KindFacts kKinds[] = {
    {kDefaultAssumed, "default-assumed", kNote},
    {kRoundedRamp, "rounded-ramp", kNote},
    {kUnrotatedLayers, "unrotated-layers", kNote},
    {kNoRotation, "no-rotation", kNote},
    {kUnknownKey, "unknown-key", kNote},
    {kUnusedSetting, "unused-setting", kNote},
    {kLengthRatio, "length-ratio", kNote},
    {kExplicitNumbers, "explicit-numbers", kNote},
    {kRotaryChannels, "rotary-channels", kNote},
    {kTopLevelParameters, "top-level-parameters", kNote},
    {kNoHeadDim, "no-head-dim", kNote},
    {kSoftmaxScale, "softmax-scale", kNote},
    {kUnknownModelType, "unknown-model-type", kWarning},
    {kNearMissKey, "near-miss-key", kWarning},
    {kRemoteCode, "remote-code", kWarning},
    {kOverriddenValue, "overridden-value", kWarning},
    {kNoEffect, "no-effect", kWarning},
    {kFactorBelowOne, "factor-below-one", kWarning},
    {kEqualFrequencyFactors, "equal-frequency-factors", kWarning},
    {kNoExtension, "no-extension", kWarning},
    {kNoOriginalLength, "no-original-length", kWarning},
    {kNoBase, "no-base", kWarning},
    {kUnusableParameters, "unusable-parameters", kWarning},
    {kLoneMscale, "lone-mscale", kWarning},
    {kUnknownLayerType, "unknown-layer-type", kError},
    {kSizesDoNotDivide, "sizes-do-not-divide", kError},
};

const KindFacts& FactsOf(RemarkKind kind) {
  const auto index = static_cast<size_t>(kind);
  ROPE_CHECK(index < std::size(kKinds) && kKinds[index].kind == kind);
  return kKinds[index];
}

}  // namespace

std::string_view Name(RemarkKind kind) {
  return FactsOf(kind).name;
}

RemarkWeight WeightOf(RemarkKind kind) {
  return FactsOf(kind).weight;
}

}  // namespace rope::kernels
