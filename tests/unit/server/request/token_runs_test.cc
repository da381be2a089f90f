#include "server/request/token_runs.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/local_engine.h"
#include "tests/support/received_request.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using rope::testing::LocalEngine;
using rope::testing::RawBytes;
using rope::testing::SetShape;
constexpr int64_t kChannels = 8;
constexpr int64_t kTokens = 3;

// Layers 0, 2 and 3 slide, layer 1 is full: theta 10000 and 1000000.
constexpr char kTwoKinds[] = R"({"model_type": "gemma3_text", "head_dim": 8,
    "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                    "sliding_attention"]})";

std::vector<float> Values(int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i % 11) - 5.0F);
  return values;
}

// A tensor of `layers` layers in `layout`, which has the axes L, S and D.
v1::RotateRequest Sample(int64_t layers, const std::string& layout = "LSD") {
  v1::RotateRequest request;
  request.mutable_rope()->set_config_json(kTwoKinds);
  request.mutable_positions()->set_start(1000);
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(v1::ROLE_K);
  tensor.set_layout(layout);
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
  std::vector<int64_t> shape;
  for (const char axis : layout) {
    shape.push_back(axis == 'L' ? layers : axis == 'S' ? kTokens : kChannels);
  }
  SetShape(*tensor.mutable_array(), shape);
  tensor.mutable_array()->set_raw(RawBytes(Values(layers * kTokens * kChannels)));
  return request;
}

class LayerRopesTest : public ::testing::Test {
 protected:
  // Rotates `request` with the layers from `first_layer`, and each layer alone; expects the same.
  void ExpectAsEachLayerAlone(v1::RotateRequest request, int64_t first_layer, int64_t layers) {
    request.mutable_rope()->set_first_layer(static_cast<int32_t>(first_layer));
    ASSERT_OK(together, engine_.Rotate(request));
    const std::string layout = request.tensors(0).layout();
    const std::vector<float> all = Values(layers * kTokens * kChannels);
    for (int64_t layer = 0; layer < layers; ++layer) {
      std::vector<size_t> cells;  // of the layer, in memory order
      for (size_t i = 0; i < all.size(); ++i) {
        const auto row = static_cast<int64_t>(i) / kChannels;
        if ((layout == "LSD" ? row / kTokens : row % layers) == layer) cells.push_back(i);
      }
      v1::RotateRequest alone = request;
      alone.mutable_rope()->clear_first_layer();
      alone.mutable_rope()->set_layer(static_cast<int32_t>(first_layer + layer));
      v1::Tensor& tensor = *alone.mutable_tensors(0);
      tensor.set_layout("SD");
      SetShape(*tensor.mutable_array(), {kTokens, kChannels});
      std::vector<float> values;
      for (const size_t cell : cells) values.push_back(all[cell]);
      tensor.mutable_array()->set_raw(RawBytes(values));
      ASSERT_OK(want, engine_.Rotate(alone));
      for (size_t i = 0; i < cells.size(); ++i) {
        EXPECT_EQ((*together)[cells[i]], (*want)[i]) << "layer " << layer << " cell " << i;
      }
    }
  }

  void ExpectFails(const v1::RotateRequest& request, const std::string& text) {
    EXPECT_THAT(engine_.Check(request), IsInvalid(text));
  }

  LocalEngine engine_;
};

TEST_F(LayerRopesTest, EachLayerRotatesAsItDoesAlone) {
  ExpectAsEachLayerAlone(Sample(4), 0, 4);
  ExpectAsEachLayerAlone(Sample(2), 1, 2);
  ExpectAsEachLayerAlone(Sample(1), 3, 1);
  ExpectAsEachLayerAlone(Sample(4, "SLD"), 0, 4);
}

TEST_F(LayerRopesTest, SoDoTheInverseAndAReposition) {
  v1::RotateRequest inverse = Sample(4);
  inverse.set_operation(v1::OPERATION_INVERSE);
  ExpectAsEachLayerAlone(inverse, 0, 4);
  v1::RotateRequest reposition = Sample(4);
  reposition.set_operation(v1::OPERATION_REPOSITION);
  reposition.mutable_reposition()->mutable_from()->set_start(17);
  ExpectAsEachLayerAlone(reposition, 0, 4);
}

// Layers of two kinds. The frequencies of a sliding layer follow the length past 4096 tokens.
std::string FullAndDynamic(const std::string& first, const std::string& second) {
  return absl::StrCat(R"({"model_type": "gemma3_text", "head_dim": 8, "num_hidden_layers": 2,
      "max_position_embeddings": 4096, "layer_types": [")",
                      first, R"(", ")", second, R"("],
      "rope_parameters": {
        "full_attention": {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0},
        "sliding_attention": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}}})");
}

v1::RotateRequest Move(const std::string& config_json, int64_t from, int64_t to,
                       const std::string& layout = "LSD") {
  v1::RotateRequest request = Sample(2, layout);
  request.mutable_rope()->set_config_json(config_json);
  request.set_operation(v1::OPERATION_REPOSITION);
  request.mutable_reposition()->mutable_from()->set_start(from);
  request.mutable_positions()->set_start(to);
  return request;
}

TEST_F(LayerRopesTest, NoLayerIsRepositionedBetweenLengthsThatChangeItsFrequencies) {
  const std::string full = "full_attention";
  const std::string sliding = "sliding_attention";
  const std::vector<std::pair<int64_t, int64_t>> moves = {{0, 5000}, {5000, 0}, {5000, 6000}};
  for (const auto& config : {FullAndDynamic(full, sliding), FullAndDynamic(sliding, full)}) {
    for (const std::string layout : {"LSD", "SLD"}) {
      for (const auto& [from, to] : moves) {
        v1::RotateRequest request = Move(config, from, to, layout);
        request.mutable_rope()->set_first_layer(0);
        ExpectFails(request, "rope.first_layer: got it with a length that changes the frequencies");
      }
      ExpectAsEachLayerAlone(Move(config, 17, 4000, layout), 0, 2);
      v1::RotateRequest planned = Move(config, 17, 5000, layout);
      planned.mutable_positions()->add_seq_lens(8000);
      planned.mutable_reposition()->mutable_from()->add_seq_lens(8000);
      ExpectAsEachLayerAlone(planned, 0, 2);
    }
  }
}

// Each kind of layer has 18 MiB of frequencies: two branches, three multipliers, three dtypes.
TEST_F(LayerRopesTest, LayersWithTooManyDifferentFrequenciesAreRefused) {
  constexpr int64_t kWide = 65536;
  std::string factors = "[1";
  for (int64_t i = 1; i < kWide / 2; ++i) factors += ",1";
  factors += "]";
  const auto entry = [&](const std::string& name, int theta) {
    return absl::StrCat("\"", name, R"(": {"rope_type": "longrope", "rope_theta": )", theta,
                        R"(, "factor": 2.0, "original_max_position_embeddings": 8,
                             "short_factor": )",
                        factors, R"(, "long_factor": )", factors, "}");
  };
  const std::string parameters =
      absl::StrCat(R"("rope_parameters": {)", entry("full_attention", 100), ", ",
                   entry("sliding_attention", 200), "}}");
  for (const std::string head_dim : {R"("head_dim": 65536, )", ""}) {
    v1::RotateRequest request = Sample(1);
    request.mutable_rope()->set_config_json(absl::StrCat(
        R"({"model_type": "gemma3_text", "num_hidden_layers": 2, "sliding_window_pattern": 2, )",
        head_dim, parameters));
    request.mutable_rope()->set_precision(v1::PRECISION_HF);
    request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
    request.mutable_rope()->set_first_layer(0);
    v1::Tensor& tensor = *request.mutable_tensors(0);
    SetShape(*tensor.mutable_array(), {2, 1, kWide});
    tensor.mutable_array()->set_raw(RawBytes(Values(2 * kWide)));
    EXPECT_THAT(engine_.Check(request),
                IsExhausted("bytes of frequencies of different layers, want at most"));
  }
}

}  // namespace
}  // namespace rope::server
