// KeptBytes: the memory that a value keeps outside of itself.
//
// Threading:  Pure functions; any thread.
#ifndef ROPE_KERNELS_CONFIG_KEPT_BYTES_H_
#define ROPE_KERNELS_CONFIG_KEPT_BYTES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/config/remark.h"
#include "kernels/config/rope_config.h"

namespace rope::kernels {

inline int64_t KeptBytes(const std::string& text) {
  const bool inside = text.capacity() <= std::string().capacity();
  return inside ? 0 : static_cast<int64_t>(text.capacity() + 1);
}

inline int64_t KeptBytes(const std::vector<bool>& flags) {
  return static_cast<int64_t>(flags.capacity() / 8);
}

template <typename T>
int64_t KeptBytes(const std::vector<T>& values) {
  return static_cast<int64_t>(values.capacity() * sizeof(T));
}

inline int64_t KeptBytes(const std::vector<std::string>& texts) {
  auto bytes = static_cast<int64_t>(texts.capacity() * sizeof(std::string));
  for (const std::string& text : texts) bytes += KeptBytes(text);
  return bytes;
}

inline int64_t KeptBytes(const std::vector<Remark>& remarks) {
  auto bytes = static_cast<int64_t>(remarks.capacity() * sizeof(Remark));
  for (const Remark& remark : remarks) bytes += KeptBytes(remark.text) + KeptBytes(remark.field);
  return bytes;
}

inline int64_t KeptBytes(const RopeConfig& config) {
  return KeptBytes(config.short_factor) + KeptBytes(config.long_factor) +
         KeptBytes(config.inv_freq) +
         (config.mrope.has_value() ? KeptBytes(config.mrope->axes) : 0);
}

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_KEPT_BYTES_H_
