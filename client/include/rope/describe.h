// What the server says about configs, models and itself.
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

namespace rope::client {

struct DescribeRequest {
  RopeSpec rope = {};
  std::optional<int64_t> seq_len = {};   // unset: the largest of `positions` + 1, or 1
  std::vector<int64_t> positions = {};   // whose cos and sin are wanted, at most 4096
  std::optional<int64_t> head_dim = {};  // where the config does not say
  // With Precision::kHf alone: the tensor's dtype whose rows are wanted; unset: fp32.
  std::optional<DType> dtype = {};
  bool sinusoidal = false;  // rows have a sinusoid, too
};

// cos and sin of one position, attention factor included, right to about 1e-16. Pair i, read as the
// complex number a + ib, is multiplied with cos[i] + i sin[i].
struct Row {
  int64_t position = 0;
  std::vector<double> cos = {};  // [rotary_dim/2]
  std::vector<double> sin = {};  // [rotary_dim/2]
  // [rotary_dim]: what Operation::kAddSinusoidal adds to the rotated channels, in their order.
  std::vector<double> sinusoid = {};
};

// How another implementation reads the same config, where that gives other numbers.
struct Reading {
  std::string implementation = {};
  std::string difference = {};
  double attention_factor = 0;
  double inv_freq_max_relative = 0;  // largest relative difference of an inverse frequency
};

// Where yarn and llama3 blend between kept and divided frequencies: indices of frequencies, which
// may be fractions, and wavelengths in positions per turn.
struct Ramp {
  double low_index = 0;   // kept up to here
  double high_index = 0;  // divided from here on
  double low_wavelength = 0;
  double high_wavelength = 0;
};

// What the scaling did to one frequency.
enum class FrequencyScaling {
  kUnspecified,  // the server does not say
  kKept,
  kBlended,  // between kept and divided by the factor (yarn, llama3)
  kScaled,   // divided by the factor, or changed otherwise
  kStill,    // 0: these channels do not turn
};

struct DescribeReply {
  std::string config_id = {};  // names this spec on this server, layer and pairing included
  RopeConfig config = {};      // with every default filled in
  Pairing pairing = Pairing::kUnspecified;
  std::string layer_type = {};  // the entry that was picked, where there are several
  bool rotates = false;         // false: this layer has no rotary embedding
  int64_t seq_len = 0;          // the length that the numbers hold for
  bool depends_on_seq_len = false;
  Precision precision = Precision::kExact;
  double attention_factor = 0;           // multiplies cos and sin
  std::vector<double> inv_freq = {};     // [rotary_dim/2], radians per position
  std::vector<double> wavelengths = {};  // [rotary_dim/2], positions per turn
  std::vector<std::string> warnings = {};
  std::vector<Reading> readings = {};
  std::optional<Ramp> ramp = {};               // none: this rope_type has none
  std::vector<FrequencyScaling> scaling = {};  // [rotary_dim/2]
  std::vector<Row> rows = {};                  // one for each position that was asked for
  // Largest error of a cos or sin if frequencies and angles were float32, up to that position.
  double float32_angle_error = 0;
  int64_t float32_angle_position = 0;
};

struct Model {
  std::string name = {};
  std::string origin = {};  // "preset", "flag" or "registered"
  std::string rope_type = {};
  double rope_theta = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  Pairing pairing = Pairing::kUnspecified;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t max_position_embeddings = 0;
  std::vector<std::string> layer_types = {};  // the entries, where they differ by layer
};

struct TableCacheStatistics {
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t builds = 0;
  int64_t evictions = 0;
  int64_t bytes = 0;
  int64_t budget_bytes = 0;
  int64_t tables = 0;
  int64_t pages = 0;
};

struct Device {
  std::string name = {};    // as in RotateReply::device
  std::string detail = {};  // for example the instruction set in use
};

struct Limit {
  std::string name = {};
  int64_t value = 0;
};

struct ServerInfo {
  std::string version = {};
  std::string instance_id = {};  // changes with every start; config_ids live as long
  double uptime_seconds = 0;
  std::vector<Device> devices = {};
  std::vector<std::string> transports = {};
  std::vector<Limit> limits = {};
  TableCacheStatistics table_cache = {};
};

enum class ServingStatus { kUnknown, kServing, kNotServing };

// "SERVING" and so on.
const char* Name(ServingStatus status);
// "half", "interleaved", "unspecified".
const char* Name(Pairing pairing);

}  // namespace rope::client

#endif  // ROPE_DESCRIBE_H_
