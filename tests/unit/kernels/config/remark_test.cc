#include "kernels/config/remark.h"

#include <gtest/gtest.h>

#include <set>
#include <string_view>

#include "kernels/config/config_json.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/kernels/config/remark_texts.h"

namespace rope::kernels {
namespace {

using ::rope::testing::TextsOf;

std::vector<Remark> RemarksOn(const char* json) {
  const auto model = ModelConfig::Parse(json);
  EXPECT_THAT(model, IsOk());
  return model->Layer({})->remarks;
}

TEST(RemarkKindTest, NamesAreDifferent) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(RemarkKind::kSizesDoNotDivide); ++i) {
    EXPECT_TRUE(names.insert(Name(static_cast<RemarkKind>(i))).second) << i;
  }
}

TEST(NearMissTest, KeysOfOtherConfigClassesAreNone) {
  EXPECT_THAT(RemarksOn(R"({"rope_theta": 7, "head_dim": 64, "v_head_dim": 128, "n_heads": 4,
      "qk_nope_head_dim": 8, "architecture": "x", "hidden_sizes": [1], "layer_type": "a"})"),
              IsEmpty());
}

TEST(NearMissTest, NamesTheKeyAndItsPlace) {
  const auto remarks = RemarksOn(R"({"text_config": {"rope_thetta": 7, "rope_theta": 7}})");
  ASSERT_THAT(TextsOf(remarks), ElementsAre(HasSubstr("did you mean rope_theta?")));
  EXPECT_EQ(remarks[0].kind, RemarkKind::kNearMissKey);
  EXPECT_EQ(remarks[0].field, "text_config.rope_thetta");
}

TEST(NoRotationTest, ModelWithOtherPositionsDoesNotRotate) {
  EXPECT_FALSE(ModelConfig::Parse(R"({"model_type": "gpt2"})")->Layer({})->rotates);
  EXPECT_FALSE(
      ModelConfig::Parse(R"({"model_type": "falcon", "alibi": true})")->Layer({})->rotates);
  EXPECT_TRUE(
      ModelConfig::Parse(R"({"model_type": "falcon", "alibi": false})")->Layer({})->rotates);
  EXPECT_FALSE(
      ModelConfig::Parse(R"({"model_type": "gpt2", "rope_theta": 7})")->Layer({})->rotates);
  // The code of its repository may rotate.
  EXPECT_TRUE(
      ModelConfig::Parse(R"({"model_type": "bert", "rope_theta": 7, "auto_map": {"a": "b"}})")
          ->Layer({})
          ->rotates);
}

}  // namespace
}  // namespace rope::kernels
