// Where a file states its rope parameters, and what its config class makes of that.
#include "kernels/config/placement.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "kernels/config/config_json.h"
#include "kernels/error.h"

namespace rope::kernels {
namespace {

using Json = nlohmann::json;

// "yarn 10000 factor 4 length 32768 channels 128"
std::string TextOf(const LayerConfig& layer) {
  if (!layer.rotates) return "does not rotate";
  const RopeConfig& config = layer.config;
  std::string text = absl::StrFormat("%s %.10g", Name(config.rope_type), config.rope_theta);
  if (config.factor.has_value()) text += StrCat(" factor ", *config.factor);
  if (config.rope_type != RopeType::kDefault && config.original_max_position_embeddings) {
    text += StrCat(" length ", *config.original_max_position_embeddings);
  }
  return StrCat(text, " channels ", RotaryDim(config, config.head_dim).value_or(0));
}

absl::StatusOr<LayerConfig> Read(const Json& row) {
  const auto model = ModelConfig::Parse(row.at("config").dump());
  if (!model.ok()) return model.status();
  LayerChoice choice = {.layer_type = row.value("layer_type", "")};
  if (row.contains("layer")) choice.layer = row.at("layer").get<int64_t>();
  return model->Layer(choice);
}

TEST(PlacementTest, ReadsWhatTheConfigClassReads) {
  std::ifstream file(ROPE_SOURCE_DIR "/tests/unit/kernels/config/placements.json");
  for (const Json& row : Json::parse(file)) {
    SCOPED_TRACE(row.at("name").get<std::string>());
    const auto layer = Read(row);
    if (row.contains("refused")) {
      ASSERT_FALSE(layer.ok());
      EXPECT_TRUE(absl::StrContains(layer.status().message(), row["refused"].get<std::string>()))
          << layer.status();
      continue;
    }
    ASSERT_TRUE(layer.ok()) << layer.status();
    EXPECT_EQ(TextOf(*layer), row.at("want"));
    std::string said;
    for (const Remark& remark : layer->remarks) said += StrCat(remark.text, "\n");
    for (const Json& part : row.value("says", Json::array())) {
      EXPECT_TRUE(absl::StrContains(said, part.get<std::string>())) << part << " in\n" << said;
    }
    for (const Json& part : row.value("never", Json::array())) {
      EXPECT_FALSE(absl::StrContains(said, part.get<std::string>())) << said;
    }
  }
}

}  // namespace
}  // namespace rope::kernels
