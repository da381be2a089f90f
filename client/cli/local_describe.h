// DescribeHere: answers a describe in this process, with the code that the server uses.
//
// Threading:  Pure functions; any thread.
// Errors:     As the server's, without "rope." and "rope.config_json." before the field.
#ifndef ROPE_CLIENT_CLI_LOCAL_DESCRIBE_H_
#define ROPE_CLIENT_CLI_LOCAL_DESCRIBE_H_

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/describe.h"
#include "rope/describe.h"
#include "rope/status.h"

namespace rope::client {

// The config.json of a preset; empty: it is none.
std::string PresetText(const std::string& name);

// NOT_FOUND: no preset has that name. Says which one was probably meant.
Status UnknownPreset(const std::string& model);

// A reply for each layer type of the config; one reply if all layers are equal, or if the request
// chooses layers. REQUIRES: the request names a config_json or a preset, and no config_id.
Result<std::vector<DescribeReply>> DescribeHere(const DescribeRequest& request);

// What is said of the values and defaults of that layer, notes only. Empty: there are none, or the
// config cannot be read.
std::vector<std::string> NotesOf(const RopeSpec& spec);

// The engine and versions of a reading (Reading or ScaleReading): "vllm 0.22.0 to 0.29.0". Where no
// code of these was run, it says so: "vllm 0.30.0 (read)".
template <typename AnyReading>
std::string EngineText(const AnyReading& reading) {
  return absl::StrCat(reading.engine, reading.version.empty() ? "" : " ", reading.version,
                      reading.version.empty() || !reading.executed.empty() ? "" : " (read)");
}

// A reading with its numbers: "ignores attn_factor (attention factor 1.2, inv_freq up to 0.5 off)".
// A factor of 0 stands for a rotation that the engine does not have.
std::string WithNumbers(absl::string_view difference, double attention_factor,
                        double inv_freq_max_relative);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_LOCAL_DESCRIBE_H_
