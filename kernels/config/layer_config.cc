#include "kernels/config/layer_config.h"

#include <algorithm>

namespace rope::kernels {

bool LayerTypes::Add(std::string_view type) {
  std::optional<size_t> number = Find(type);
  if (!number.has_value()) {
    if (names_.size() == kLayerTypesMax || type.size() > kLayerTypeBytesMax) return false;
    number = names_.size();
    names_.emplace_back(type);
  }
  numbers_.push_back(static_cast<uint8_t>(*number));
  return true;
}

std::optional<size_t> LayerTypes::Find(std::string_view type) const {
  const auto found = std::find(names_.begin(), names_.end(), type);
  if (found == names_.end()) return std::nullopt;
  return static_cast<size_t>(found - names_.begin());
}

int64_t LayerTypes::KeptBytes() const {
  return kernels::KeptBytes(names_) + kernels::KeptBytes(numbers_);
}

int64_t LayerConfig::KeptBytes() const {
  using kernels::KeptBytes;
  return KeptBytes(config) + KeptBytes(layer_type) + KeptBytes(names.model_type) +
         KeptBytes(names.architectures) + KeptBytes(remarks) +
         (scale == nullptr ? 0 : static_cast<int64_t>(sizeof(ScaleKeys)));
}

}  // namespace rope::kernels
