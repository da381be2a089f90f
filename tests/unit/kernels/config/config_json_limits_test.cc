// Limits of the reader of config.json: no short text takes long.
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/config/config_json.h"
#include "kernels/config/rope_config.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

constexpr size_t kTextBytes = 1 << 20;
// Far above what any text below takes, far below the minutes of a quadratic reader.
constexpr std::chrono::seconds kSlow{5};

void ExpectInvalid(std::string_view json, const std::string& message) {
  EXPECT_THAT(ModelConfig::Parse(json), IsInvalid(message));
}

// `count` fields "nameN": value.
std::string Fields(std::string_view name, int count, std::string_view value) {
  std::string fields;
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(&fields, fields.empty() ? "" : ", ", "\"", std::string(name), i,
                    "\": ", std::string(value));
  }
  return fields;
}

std::string Repeated(std::string_view element, int count) {
  std::string list;
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(&list, list.empty() ? "" : ",", std::string(element));
  }
  return list;
}

absl::StatusOr<ModelConfig> ParseInTime(const std::string& json) {
  const auto start = std::chrono::steady_clock::now();
  auto model = ModelConfig::Parse(json);
  EXPECT_LT(std::chrono::steady_clock::now() - start, kSlow);
  return model;
}

TEST(HugeNumberTest, DimsOfTheLargestHeadAreRead) {
  ASSERT_OK(model, ModelConfig::Parse(
                       R"({"model_type": "pixtral", "rope_theta": 1e6, "head_dim": 65536})"));
  EXPECT_EQ(model->Layer({})->config.mrope->axes.size(), 32768u);
}

TEST(HugeNumberTest, ListOfASizeIsRefusedWhateverItsDepth) {
  const std::string deep(400000, '[');
  ExpectInvalid(absl::StrCat(R"({"model_type": "jetmoe", "kv_channels": )", deep,
                             std::string(deep.size(), ']'), "}"),
                "head_dim: got a list of 1, want a whole number");
}

TEST(LayerTypesLimitTest, NullsCount) {
  const std::string nulls = Fields("_", 64, "null");
  const std::string entry = R"("full_attention": {"rope_theta": 7})";
  ExpectInvalid(absl::StrCat(R"({"rope_parameters": {)", nulls, ", ", entry, "}}"),
                "rope_parameters: got more layer types, want at most 64");
  ExpectInvalid(
      absl::StrCat(R"({"rope_parameters": {)", Fields("_", 65, "null"), ", ", entry, "}}"),
      "rope_parameters: got more layer types, want at most 64");
  EXPECT_THAT(ModelConfig::Parse(absl::StrCat(R"({"rope_parameters": {)", Fields("_", 63, "null"),
                                              ", ", entry, "}}")),
              IsOk());
}

TEST(LayerTypesLimitTest, TypesOfAFragmentAreBounded) {
  std::string types = R"("full_attention": {"rope_theta": 7})";
  for (int i = 0; i < 64; ++i) absl::StrAppend(&types, ", \"", i, "_attention\": null");
  ExpectInvalid(absl::StrCat("{", types, "}"),
                "config_json: got more layer types, want at most 64");
}

TEST(LayerTypesLimitTest, NamesAreShort) {
  const std::string name(129, 'a');
  ExpectInvalid(absl::StrCat(R"({"rope_parameters": {")", name, R"(": {"rope_theta": 7}}})"),
                "want names of at most 128 bytes");
  ExpectInvalid(absl::StrCat(R"({"rope_theta": 7, "layer_types": [")", name, R"("]})"),
                "want at most 64 types, of at most 128 bytes each");
  ExpectInvalid(absl::StrCat(R"({"rope_theta": 7, "model_type": ")", name, R"("})"),
                "want a name of at most 128 bytes");
}

TEST(LayerTypesLimitTest, AListHasAtMost64DifferentOnes) {
  std::string list;
  for (int i = 0; i < 65; ++i) {
    if (i == 64) {
      EXPECT_THAT(ModelConfig::Parse(absl::StrCat(R"({"layer_types": [)", list, "]}")), IsOk());
    }
    absl::StrAppend(&list, i == 0 ? "" : ", ", "\"type", i, "\"");
  }
  ExpectInvalid(absl::StrCat(R"({"layer_types": [)", list, "]}"),
                R"(layer_types: got "type64", want at most 64 types)");
}

TEST(LayerTypesLimitTest, ListsOfLayersAreBounded) {
  for (const char* key : {"hybrid_layer_pattern", "no_rope_layers", "layer_types"}) {
    const char* const element = std::string_view(key) == "layer_types" ? R"("a")" : "1";
    EXPECT_THAT(
        ModelConfig::Parse(absl::StrCat("{\"", key, "\": [", Repeated(element, 65536), "]}")),
        IsOk());
    ExpectInvalid(absl::StrCat("{\"", key, "\": [", Repeated(element, 65537), "]}"),
                  absl::StrCat(key, ": got 65537 elements, want at most 65536"));
  }
}

TEST(LayerTypesLimitTest, ListsOfFrequenciesAreBounded) {
  for (const char* key : {"short_factor", "long_factor", "inv_freq"}) {
    ExpectInvalid(absl::StrCat(R"({"rope_scaling": {")", key, "\": [", Repeated("1", 65537), "]}}"),
                  absl::StrCat("rope_scaling.", key, ": got 65537 elements, want at most 65536"));
  }
}

TEST(LayerTypesLimitTest, EmbeddingsOfAllTypesTogetherAreBounded) {
  const std::string start = R"({"model_type": "neomme", "head_dim": 65536, "rope_parameters": {)";
  EXPECT_THAT(ModelConfig::Parse(absl::StrCat(start, Fields("a", 2, "{}"), "}}")), IsOk());
  ExpectInvalid(absl::StrCat(start, Fields("a", 64, "{}"), "}}"), "got more than 2097152 bytes");
}

TEST(TimeLimitTest, AMebibyteOfObjectsIsReadInTime) {
  EXPECT_THAT(ParseInTime(absl::StrCat(R"({"a": [)", Repeated("{}", kTextBytes / 3 - 8), "]}")),
              IsOk());
  EXPECT_THAT(ParseInTime(absl::StrCat("{", Fields("", kTextBytes / 16, "{}"), "}")), IsOk());
}

TEST(TimeLimitTest, PerLayerConfigIsReadInTime) {
  EXPECT_THAT(ParseInTime(absl::StrCat(R"({"model_type": "mistral4", "rope_parameters": {)",
                                       Fields("type", 64, "{}"), R"(}, "per_layer_config": {)",
                                       Fields("", 30000, "{}"), R"(}, "layer_types": [)",
                                       Repeated(R"("type63")", 65536), "]}")),
              IsOk());
}

}  // namespace
}  // namespace rope::kernels
