// Answers of the server about configs and its health. Kernels, server and client use the same
// DescribeReply.
//
// Threading:  Values.
#ifndef ROPE_DESCRIBE_H_
#define ROPE_DESCRIBE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rope/config.h"
#include "rope/tensor.h"

namespace rope {

// cos and sin of one position, attention factor included. The numbers are doubles, accurate to
// 1e-13 up to position 10^6 and to 1e-10 up to 2^30. The rotation multiplies pair i, read as the
// complex number a + ib, by cos[i] + i sin[i].
struct Row {
  int64_t position = 0;
  std::vector<double> cos = {};  // [rotary_dim/2]
  std::vector<double> sin = {};  // [rotary_dim/2]
  // [rotary_dim]: the values that Operation::kAddSinusoidal adds to the rotated channels, in order.
  std::vector<double> sinusoid = {};
};

// An engine's interpretation of the same config, if its numbers differ.
struct Reading {
  std::string engine = {};   // for example "vllm"
  std::string version = {};  // the versions that were checked, for example "0.22.0 to 0.29.0"
  // Those of them whose code was run; empty: their files were only read.
  std::string executed = {};
  std::string difference = {};
  double attention_factor = 0;  // 0: the engine does not support this rotation
  // Largest relative difference of any inverse frequency; infinity: other channels turn.
  double inv_freq_max_relative = 0;
};

// What the model's code multiplies logits and q by, beside the rotation and beside 1 / sqrt(d), for
// heads of d channels, those without rotation included.
struct AttentionScale {
  double softmax = 1;  // multiplies the scale of the softmax
  // On the rotated channels: softmax * attention_factor^2. On others it is `softmax` alone.
  double logits = 1;
  // q at position p is multiplied by 1 + beta ln(1 + floor((p + offset) / length)), after the
  // rotation. beta 0: it is not.
  double temperature_beta = 0;
  int64_t temperature_length = 0;
  int64_t temperature_offset = 0;
};

// An engine that scales attention in another way.
struct ScaleReading {
  std::string engine = {};    // as Reading::engine
  std::string version = {};   // as Reading::version
  std::string executed = {};  // as Reading::executed
  std::string difference = {};
  AttentionScale scale = {};
};

// The range in which a type blends kept and divided frequencies. Indices of frequencies may be
// fractions; wavelengths are in positions per turn.
struct Ramp {
  double low_index = 0;   // frequencies up to this index are kept
  double high_index = 0;  // frequencies from this index on are divided
  double low_wavelength = 0;
  double high_wavelength = 0;
};

// The effect of the scaling on one frequency.
enum class FrequencyScaling {
  kUnspecified,  // not reported by the server
  kKept,
  kBlended,  // between kept and divided by the factor, on a ramp
  kScaled,   // divided by the factor, or changed in another way
  kStill,    // frequency 0: these channels do not rotate
};

struct DescribeReply {
  // A hash of this embedding, with layer, pairing, compat and precision: the same on every server.
  std::string config_id = {};
  RopeConfig config = {};               // with all defaults filled in, and the precision
  std::optional<Pairing> pairing = {};  // unset: unknown; Rotate then needs RopeSpec::pairing
  // The order in which the model's own code leaves rotated pairs; unset if it is `pairing`.
  std::optional<Pairing> channel_order = {};
  std::string layer_type = {};  // the selected entry, if the config has several
  bool rotates = false;         // false: this layer has no rotary embedding
  int64_t seq_len = 0;          // the sequence length for which the numbers hold
  bool depends_on_seq_len = false;
  double attention_factor = 0;           // multiplies cos and sin
  std::vector<double> inv_freq = {};     // [rotary_dim/2], radians per position
  std::vector<double> wavelengths = {};  // [rotary_dim/2], positions per turn
  std::vector<std::string> warnings = {};
  std::vector<Reading> readings = {};
  std::optional<AttentionScale> scale = {};  // unset: none, or not known
  std::vector<ScaleReading> scale_readings = {};
  std::optional<Ramp> ramp = {};               // unset: this rope_type has no ramp
  std::vector<FrequencyScaling> scaling = {};  // [rotary_dim/2]
  std::vector<Row> rows = {};                  // one for each requested position, in order
  // Largest error of a cos or sin up to float32_angle_position if frequencies and angles were
  // computed in float32.
  double float32_angle_error = 0;
  int64_t float32_angle_position = 0;
};

}  // namespace rope

namespace rope::client {

using rope::AttentionScale, rope::DescribeReply, rope::FrequencyScaling, rope::Ramp;
using rope::Reading, rope::Row, rope::ScaleReading;

struct DescribeRequest {
  RopeSpec rope = {};
  std::optional<int64_t> seq_len = {};   // unset: the largest of `positions` + 1, or 1
  std::vector<int64_t> positions = {};   // asks for a Row of each; at most 4096, and 16 MiB
  std::optional<int64_t> head_dim = {};  // required if the config does not contain it
  // Only with Precision::kHf: the tensors' dtype, for which rows are rounded. Unset: fp32.
  std::optional<DType> dtype = {};
  bool sinusoidal = false;  // true: also fill Row::sinusoid
};

enum class ServingStatus { kUnknown, kServing, kNotServing };

// "SERVING", "NOT_SERVING" or "UNKNOWN".
const char* Name(ServingStatus status);

}  // namespace rope::client

#endif  // ROPE_DESCRIBE_H_
