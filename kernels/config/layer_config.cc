#include "kernels/config/layer_config.h"

#include "kernels/config/kept_bytes.h"

namespace rope::kernels {

int64_t LayerConfig::KeptBytes() const {
  using kernels::KeptBytes;
  return KeptBytes(config) + KeptBytes(layer_type) + KeptBytes(model_type) +
         KeptBytes(architectures) + KeptBytes(remarks);
}

}  // namespace rope::kernels
