#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/config/config_json.h"
#include "kernels/config/layer_config.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

TEST(KeptBytesTest, EveryListOfAConfigCounts) {
  constexpr int64_t kList = 1000 * sizeof(double);
  RopeConfig config;
  EXPECT_EQ(KeptBytes(config), 0);
  config.short_factor.resize(1000);
  EXPECT_GE(KeptBytes(config), kList);
  config.long_factor.resize(1000);
  EXPECT_GE(KeptBytes(config), 2 * kList);
  config.inv_freq.resize(1000);
  EXPECT_GE(KeptBytes(config), 3 * kList);
  config.mrope.emplace().axes.resize(1000);
  EXPECT_GE(KeptBytes(config), 3 * kList + 1000);
}

TEST(KeptBytesTest, LayersTakeAByteEach) {
  ASSERT_OK(model,
            ModelConfig::Parse(
                R"({"rope_theta": 7, "num_hidden_layers": 65536, "sliding_window_pattern": 2})"));
  EXPECT_EQ(model->numbered_layers(), 65536);
  EXPECT_GE(model->KeptBytes(), 65536);
  EXPECT_LE(model->KeptBytes(), 128 << 10);
}

TEST(KeptBytesTest, ListsNamesAndWarningsCount) {
  const auto bytes = [](std::string_view json) {
    const auto model = ModelConfig::Parse(json);
    EXPECT_THAT(model, IsOk());
    return model.ok() ? model->KeptBytes() : 0;
  };
  const int64_t least = bytes(R"({"rope_theta": 7})");
  EXPECT_GE(least, static_cast<int64_t>(sizeof(ModelConfig) + sizeof(LayerConfig)));
  std::string numbers = "1";
  for (int i = 1; i < 1000; ++i) numbers += ",1";
  EXPECT_GE(
      bytes(absl::StrCat(R"({"rope_theta": 7, "rope_scaling": {"inv_freq": [)", numbers, "]}}")),
      least + 8000);
  EXPECT_GE(bytes(R"({"model_type": "neomme", "rope_theta": 7, "head_dim": 2000})"), least + 1000);
  EXPECT_GE(bytes(absl::StrCat(R"({"rope_theta": 7, "architectures": [")", std::string(100, 'a'),
                               R"("]})")),
            least + 100);
  EXPECT_GE(bytes(R"({"rope_theta": 7, "rope_percent": 1})"),
            least + static_cast<int64_t>(sizeof(std::string)));
}

}  // namespace
}  // namespace rope::kernels
