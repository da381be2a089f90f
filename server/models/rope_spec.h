// Reads rope.v1.RopeSpec, and converts between rope.v1.RopeConfig and kernels::RopeConfig, whose
// fields have the same names.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_MODELS_ROPE_SPEC_H_
#define ROPE_SERVER_MODELS_ROPE_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/compat/rope_readings.h"
#include "kernels/config/config_json.h"
#include "kernels/config/rope_config.h"
#include "kernels/dtype/pairing.h"
#include "rope/v1/config.pb.h"

namespace rope::server {

// Prefixes a kernel's error, which names a field of the config or of the choice of a part of it,
// with the request's field. `config_field`: the path of the config.
absl::Status InField(const std::string& config_field, const absl::Status& status);

// INVALID_ARGUMENT: an unknown rope_type or enum value, an mrope_section without exactly three
// counts, inv_freq as raw bytes. kernels::Validate checks the values.
absl::StatusOr<kernels::RopeConfig> ReadRopeConfig(const v1::RopeConfig& message);

v1::RopeConfig WriteRopeConfig(const kernels::RopeConfig& config);

v1::Pairing WritePairing(std::optional<kernels::Pairing> pairing);

// nullopt: unset. INVALID_ARGUMENT: an unknown enum value.
absl::StatusOr<std::optional<kernels::Pairing>> ReadPairing(v1::Pairing pairing);

// INVALID_ARGUMENT: the spec names no embedding, has fields that exclude each other, or has a
// first_layer, which ModelRegistry::FindLayers reads.
absl::Status CheckSpec(const v1::RopeSpec& spec);

// Whether the spec takes milliseconds to read wherever it is used: a whole file, or the embeddings
// of many layers. ModelRegistry::TakesLong also looks at what the registry has.
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

// INVALID_ARGUMENT: an unknown enum value.
absl::StatusOr<kernels::Compat> ReadCompat(v1::Compat compat);
absl::StatusOr<kernels::Precision> ReadPrecision(v1::Precision precision);
v1::Precision WritePrecision(kernels::Precision precision);

}  // namespace rope::server

#endif  // ROPE_SERVER_MODELS_ROPE_SPEC_H_
