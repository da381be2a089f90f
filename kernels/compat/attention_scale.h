// The scale of attention: what a model's code, and engines, multiply its logits and q by, beside
// the rotation and 1 / sqrt(channels of a head).
//
//   logit = q k / sqrt(d) * softmax * T(position of q), on rotated channels * attention_factor^2
//
// Threading:  Pure functions; any thread.
#ifndef ROPE_KERNELS_COMPAT_ATTENTION_SCALE_H_
#define ROPE_KERNELS_COMPAT_ATTENTION_SCALE_H_

#include <optional>
#include <string>
#include <vector>

#include "kernels/compat/rope_readings.h"
#include "kernels/config/layer_config.h"
#include "kernels/config/remark.h"
#include "kernels/config/rope_config.h"
#include "rope/describe.h"

namespace rope::kernels {

// The scale by the model's own code: Hugging Face's class, or the format of Mistral's params.json.
// `stated` is the layer's config as the file has it, without a compat, and `attention_factor` that
// of its rotation. REQUIRES: Validate(stated) is OK, if the layer rotates.
AttentionScale ScaleOf(const LayerConfig& layer, const RopeConfig& stated, double attention_factor);

// The scale by an engine, of the layer's config; unset: it was not checked. `version` may be empty:
// the newest.
std::optional<AttentionScale> ScaleAs(const LayerConfig& layer, const EngineVersion& engine,
                                      double attention_factor);

// The engines whose scale differs from `own`, which is ScaleOf, the newest versions of an engine
// first. Where it was not checked how an engine reads the rotation, its attention factor
// counts as `attention_factor`.
std::vector<ScaleReading> ScaleReadings(const LayerConfig& layer, const RopeConfig& stated,
                                        const AttentionScale& own, double attention_factor);

// Notes: a softmax scale that an engine must multiply, and a magnitude of yarn that nothing has.
std::vector<Remark> ScaleRemarks(const LayerConfig& layer, const RopeConfig& stated);

// "1 + 0.1 ln(1 + floor((p + 1) / 8192))"; "none".
std::string TemperatureText(const AttentionScale& scale);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_COMPAT_ATTENTION_SCALE_H_
