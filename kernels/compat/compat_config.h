// CompatConfig: a config as an implementation reads it.
//
// Threading:  Values.
#ifndef ROPE_KERNELS_COMPAT_COMPAT_CONFIG_H_
#define ROPE_KERNELS_COMPAT_COMPAT_CONFIG_H_

#include <string>
#include <vector>

#include "kernels/config/rope_config.h"

namespace rope::kernels {

struct CompatConfig {
  RopeConfig config;                 // the same rotation without a compat
  std::vector<std::string> changes;  // one sentence per change
  std::string model_type = {};       // of the file; empty if it has none
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_COMPAT_COMPAT_CONFIG_H_
