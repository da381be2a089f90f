#include "kernels/config/rope_config.h"

namespace rope::kernels {

int AxisOf(const Mrope& mrope, int64_t index) {
  if (!mrope.axes.empty()) return mrope.axes[static_cast<size_t>(index)];
  const auto& section = mrope.section;
  if (mrope.layout == Mrope::Layout::kSections || mrope.layout == Mrope::Layout::kAxial) {
    if (index < section[0]) return 0;
    return index < section[0] + section[1] ? 1 : 2;
  }
  if (mrope.layout == Mrope::Layout::kHwInterleaved) {
    if (index >= section[1] + section[2]) return 0;
    return index % 2 == 0 ? 1 : 2;
  }
  if (index % 3 == 1 && index < 3 * section[1]) return 1;
  if (index % 3 == 2 && index < 3 * section[2]) return 2;
  return 0;
}

}  // namespace rope::kernels
