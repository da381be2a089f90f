// The config that the caller of diagnose believes in, from the command line.
//
// Threading:  Functions; a server is asked only for a model or a config_id, and only with --target.
// Errors:     INVALID_ARGUMENT: flags, files and configs that are not valid. NOT_FOUND: no preset
//             has the name. FAILED_PRECONDITION: the chosen layer does not rotate. Those of
//             Client::Describe, if a server is asked.
#ifndef ROPE_CLIENT_CLI_DIAGNOSE_BELIEVED_CONFIG_H_
#define ROPE_CLIENT_CLI_DIAGNOSE_BELIEVED_CONFIG_H_

#include <cstdint>

#include "client/cli/arguments.h"
#include "rope/config.h"
#include "rope/status.h"

namespace rope::client {

struct BelievedConfig {
  RopeConfig config;
  Pairing pairing = Pairing::kHalf;  // also if neither flags nor model say it
};

// What the flags name; without a config: theta 10000, every channel. INVALID_ARGUMENT is wrong
// usage, as with RopeSpecOf.
Result<RopeSpec> BelievedSpecOf(const Arguments& arguments, int64_t head_dim);

// A model is a preset of this program; with --target it is what the server knows by that name.
Result<BelievedConfig> BelievedConfigOf(const RopeSpec& spec, const Arguments& arguments,
                                        int64_t head_dim);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_DIAGNOSE_BELIEVED_CONFIG_H_
