// The rules of rope.v1.RopeSpec.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_MODELS_ROPE_SPEC_H_
#define ROPE_SERVER_MODELS_ROPE_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/config/config_json.h"
#include "kernels/config/rope_config.h"
#include "rope/v1/config.pb.h"

namespace rope::server {

// Prefixes a kernel's error, which names a field of the config or of the choice of a part of it,
// with the request's field. `config_field`: the path of the config.
absl::Status InField(const std::string& config_field, const absl::Status& status);

// INVALID_ARGUMENT: the spec names no embedding, has fields that exclude each other, or has a
// first_layer, which ModelRegistry::FindLayers reads.
absl::Status CheckSpec(const v1::RopeSpec& spec);

// Whether the spec takes milliseconds to read, even if it is cached: it has a whole file.
bool TakesLongToRead(const v1::RopeSpec& spec);

// The channels that the config names, or the elements of its longest list if they are more. What a
// config costs grows with it; 0: the channels come with a tensor.
int64_t WidthOf(const v1::RopeConfig& message);
int64_t WidthOf(const kernels::RopeConfig& config);

// A wider embedding is resolved on another thread than the one that received its spec: 65,536
// channels take 5 milliseconds, and two to three times as long with xpos or precision hf.
inline constexpr int64_t kWidthHereMax = 2048;

inline constexpr size_t kModelNameBytesMax = 128;

// INVALID_ARGUMENT, of `field`: `name` is no legal name of a model.
absl::Status CheckModelName(absl::string_view field, absl::string_view name);

kernels::LayerChoice ChoiceOf(const v1::RopeSpec& spec);

}  // namespace rope::server

#endif  // ROPE_SERVER_MODELS_ROPE_SPEC_H_
