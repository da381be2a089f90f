// Remark: what is said of a config that is valid: a default that was assumed, a key that has no
// effect, a probable mistake. RemarkKind: what it is about. Its name is the rule of `ropectl lint`
// and never changes; its weight is decided here, for lint and for the warnings of replies alike.
//
// Threading:  Values and pure functions; any thread.
#ifndef ROPE_KERNELS_CONFIG_REMARK_H_
#define ROPE_KERNELS_CONFIG_REMARK_H_

#include <string>
#include <string_view>
#include <vector>

#include "kernels/error.h"

namespace rope::kernels {

// In ascending order.
enum class RemarkWeight {
  kNote,     // as published files have it; replies do not repeat it
  kWarning,  // probably a mistake
  kError,    // a mistake that every model's code would refuse or misread; replies warn of it
};

// In ascending order of weight: a kind has the weight of its part.
enum class RemarkKind {
  // Notes.
  kDefaultAssumed,      // an absent key has the value of the config class, or of the formula
  kRoundedRamp,         // yarn's edges are rounded, because truncate is absent
  kUnrotatedLayers,     // some layers do not rotate
  kNoRotation,          // the model has no rotary embedding
  kUnknownKey,          // a key beside the rope parameters that is not read
  kUnusedSetting,       // a setting of another rope_type, or replaced by another setting
  kLengthRatio,         // factor contradicts the ratio of the two lengths
  kExplicitNumbers,     // explicit numbers replace the result of a formula
  kRotaryChannels,      // rotary_dim is truncated, or the window ends past head_dim
  kTopLevelParameters,  // the rope parameters are the file itself
  kNoHeadDim,           // a fragment without a head_dim
  kSoftmaxScale,        // what multiplies the softmax, or should
  // Warnings.
  kUnknownModelType,  // nothing is known of this model's code
  kNearMissKey,       // a key that is one or two letters from one that is read
  kRemoteCode,        // a key by which a model's own code changes the rotation
  kOverriddenValue,   // a value that the file states, and another place decides
  kNoEffect,          // a factor without a rope_type that uses it
  kFactorBelowOne,    // scaling that turns faster
  kEqualFrequencyFactors,
  kNoExtension,         // a scaling whose length is not extended
  kNoOriginalLength,    // yarn or longrope without original_max_position_embeddings
  kNoBase,              // a scaling without rope_theta
  kUnusableParameters,  // Hugging Face's code fails on them
  kLoneMscale,          // mscale without mscale_all_dim, or the other way round
  // Errors.
  kUnknownLayerType,  // parameters of a layer type that the model lacks
  kSizesDoNotDivide,  // head_dim is no whole number
};

struct Remark {
  RemarkKind kind = RemarkKind::kDefaultAssumed;
  std::string text;
  std::string field = {};  // the path of its key; empty: the first key that the text names
};

// Adds a remark whose text is `parts`, joined, to `remarks`.
template <typename... Parts>
void AddRemark(std::vector<Remark>& remarks, RemarkKind kind, const Parts&... parts) {
  remarks.push_back({kind, StrCat(parts...)});
}

// "near-miss-key".
std::string_view Name(RemarkKind kind);

RemarkWeight WeightOf(RemarkKind kind);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_REMARK_H_
