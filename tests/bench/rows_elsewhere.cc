// Rows that need something that this program lacks; they print the reason instead of a figure.
#include <string>
#include <vector>

#include "tests/bench/measure.h"

namespace rope::bench {

std::vector<Row> ElsewhereRows() {
  const auto row = [](const std::string& name, const std::string& bar, const std::string& reason) {
    return Row{name, bar, [reason] {
                 return Measurement{.unit = "", .yardstick = reason, .measured = false};
               }};
  };
  const std::string gpu = "needs a GPU: tests/gpu/run.sh";
  return {
      row("peers/onnxruntime", ">= 2", "needs ONNX Runtime: tests/peers/run.sh --speed"),
      row("peers/pytorch", ">= 20", "needs PyTorch: tests/peers/run.sh --speed"),
      row("gpu/rotate_131072_tokens", ">= 0.98", gpu),
      row("gpu/rotate_few_tokens", "<= 3", gpu),
      row("gpu/host_tensor_64MiB", "<= 1.3", gpu),
  };
}

}  // namespace rope::bench
