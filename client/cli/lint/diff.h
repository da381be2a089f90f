// Diff: how the rotations of two configs differ, for each layer type.
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT: a config is refused; the message names its field.
// Limits:     As kernels::ModelConfig; any bytes are accepted. Scales of xPos are compared as
//             settings: the search for a first position is left out.
#ifndef ROPE_CLIENT_CLI_LINT_DIFF_H_
#define ROPE_CLIENT_CLI_LINT_DIFF_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/lint/lint.h"
#include "kernels/compat/model_family.h"
#include "kernels/compat/rope_readings.h"
#include "kernels/config/config_json.h"
#include "rope/status.h"

namespace rope::client {

// The rotation of one layer type of one config, for one length.
struct Rotation {
  bool rotates = true;  // false: the fields below are empty
  // "half", "interleaved" or "unspecified": of the file, or of an engine that misreads it.
  std::string pairing;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  int64_t rotary_offset = 0;
  std::string mrope;  // "sections 16, 24, 24"; empty: one axis
  std::string xpos;   // "scale_base 512, centre 0"; empty: none
  Turns turns;
  // What multiplies logits and q beside it, in words; empty: not known.
  std::string softmax_scale;
  std::string temperature;
  kernels::EnginePairs pairs;  // of the side's engine
  std::string permuter;        // the engine, if it puts q's and k's channels into another order
};

// One side of a comparison.
struct DiffSide {
  absl::StatusOr<kernels::ModelConfig> config;
  kernels::EngineVersion engine = {};  // whose reading; without a name: as the config is written
};

// One frequency of both.
struct FrequencyPair {
  size_t index = 0;
  double a = 0;
  double b = 0;
};

struct LayerDifference {
  std::string layer_type;  // empty: layers do not differ
  // The length of a sequence for which the frequencies hold; unset: every length.
  std::optional<int64_t> seq_len;
  std::optional<Rotation> a;  // unset: the config has no such layer type
  std::optional<Rotation> b;
  std::optional<FrequencyPair> frequency;  // the first that differs
  // Unset: one of them does not rotate, or has xPos.
  std::optional<FirstDifference> first;
  int64_t end = 0;  // the positions 0 to end - 1 were searched
  bool equal = false;
  std::string note;  // "llama.cpp permutes ...": why other pairs are equal; empty: nothing to say
};

// Compares the layer types of both. Where one config has a single type for all layers, it is
// compared with each type of the other. A config whose numbers follow the length is compared at
// length 1 and at the larger max_position_embeddings. `error` is that of cos and sin, above 0. With
// an engine it decides whether the rotations are equal; without one every bit does.
// INVALID_ARGUMENT: a config; an engine that has no such rotation, or was not checked.
Result<std::vector<LayerDifference>> Diff(const DiffSide& a, const DiffSide& b, double error);
// The side of the text of a config.json, or of its sub-config of that path. INVALID_ARGUMENT, of
// "engine": kernels::ParseEngine; empty: no engine.
Result<DiffSide> SideOf(const std::string& text, const std::string& sub_config,
                        const std::string& engine);

// An array with an object for each layer type.
std::string DiffJson(const std::vector<LayerDifference>& differences);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_LINT_DIFF_H_
