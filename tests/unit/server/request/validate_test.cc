#include "server/request/validate.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "server/error.h"
#include "server/request/limits.h"
#include "tests/support/received_request.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::AddFloatTensor;
using ::rope::testing::ReceivedRequest;
using ::rope::testing::SetShape;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

absl::StatusOr<Plan> Check(const v1::RotateRequest& request) {
  static ModelRegistry& registry = *ModelRegistry::Create({})->release();  // lives on
  const ReceivedRequest received(request);
  return Validate(received.message, received.split, registry);
}

void ExpectFails(const v1::RotateRequest& request, absl::StatusCode code, const std::string& text) {
  EXPECT_THAT(Check(request), Fails(code, text));
}

v1::Tensor& AddTensor(v1::RotateRequest& request, const std::string& layout,
                      const std::vector<int64_t>& shape, v1::Role role = v1::ROLE_Q) {
  return AddFloatTensor(request, role, layout, shape);
}

// One sequence of three tokens, two heads of eight channels.
v1::RotateRequest Sample() {
  v1::RotateRequest request;
  request.mutable_rope()->mutable_config()->set_head_dim(8);
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  request.mutable_positions()->set_start(5);
  AddTensor(request, "SHD", {3, 2, 8});
  return request;
}

// A longrope config of original length 4, with both lists of factors.
v1::RotateRequest LongropeSample(int64_t batch, int64_t tokens) {
  v1::RotateRequest request;
  v1::RopeConfig& config = *request.mutable_rope()->mutable_config();
  config.set_rope_type("longrope");
  config.set_head_dim(4);
  config.set_max_position_embeddings(16);
  config.set_original_max_position_embeddings(4);
  for (const double factor : {1.0, 1.0}) config.add_short_factor(factor);
  for (const double factor : {2.0, 3.0}) config.add_long_factor(factor);
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  AddTensor(request, "BSD", {batch, tokens, 4});
  return request;
}

v1::RotateRequest NoRopeSample() {
  v1::RotateRequest request = Sample();
  v1::RopeSpec& rope = *request.mutable_rope();
  rope.clear_config();
  rope.set_config_json(
      R"({"head_dim": 8, "num_hidden_layers": 2, "no_rope_layers": [1, 0],
          "rope_theta": 10000.0})");
  rope.set_layer(1);
  return request;
}

TEST(ValidateTest, PlanSaysEverything) {
  v1::RotateRequest request = Sample();
  v1::Tensor& k = AddTensor(request, "SHD", {3, 1, 8}, v1::ROLE_K);
  k.mutable_array()->set_dtype(v1::DTYPE_BF16);
  k.mutable_array()->set_raw(std::string(3 * 8 * 2, 0));
  ASSERT_OK(plan, Check(request));
  EXPECT_EQ(plan->tokens, 3);
  EXPECT_EQ(plan->bytes_per_token, 2 * 8 * 4 + 8 * 2);
  EXPECT_EQ(plan->tensors[0].output_bytes(), 3 * 2 * 8 * 4);
  EXPECT_EQ(plan->tensors[1].output_bytes(), 3 * 8 * 2);
  EXPECT_TRUE(plan->rotates);
  EXPECT_FALSE(plan->conjugate);
  EXPECT_EQ(plan->geometry.pairing, kernels::Pairing::kHalf);
  EXPECT_EQ(plan->geometry.pairs, 4);
  EXPECT_EQ(plan->geometry.partner, 4);
  EXPECT_THAT(plan->positions[0], ElementsAre(5, 6, 7));
  ASSERT_THAT(plan->row_sets[0].runs, SizeIs(1));
  EXPECT_EQ(plan->row_sets[0].runs[0].begin, 0);
  EXPECT_EQ(plan->row_sets[0].runs[0].end, 3);
  EXPECT_THAT(plan->warnings, IsEmpty());
}

TEST(ValidateTest, PartialRotaryTurnsItsChannelsOnly) {
  v1::RotateRequest request = Sample();
  request.mutable_rope()->mutable_config()->set_rotary_dim(4);
  ASSERT_OK(plan, Check(request));
  EXPECT_EQ(plan->geometry.pairs, 2);
  EXPECT_EQ(plan->geometry.partner, 2);
}

TEST(ValidateTest, ConfigWithoutHeadDimTakesTheTensors) {
  v1::RotateRequest request = Sample();
  request.mutable_rope()->mutable_config()->clear_head_dim();
  EXPECT_THAT(Check(request), IsOk());
}

TEST(ValidateTensorsTest, NoneAndTooManyAreInvalid) {
  v1::RotateRequest request = Sample();
  request.clear_tensors();
  ExpectFails(request, kInvalid, "tensors: got nothing, want 1 to 1024 tensors");
  for (int64_t i = 0; i < limits::kTensorsMax; ++i) AddTensor(request, "SD", {1, 8});
  EXPECT_THAT(Check(request), IsOk());
  AddTensor(request, "SD", {1, 8});
  ExpectFails(request, kInvalid, "tensors: got 1025, want 1 to 1024 tensors");
}

TEST(ValidateTensorsTest, MissingPartsAreNamed) {
  v1::RotateRequest request = Sample();
  request.mutable_tensors(0)->clear_role();
  ExpectFails(request, kInvalid, "tensors[0].role: got nothing, want ROLE_Q or ROLE_K");
  request.mutable_tensors(0)->set_role(static_cast<v1::Role>(7));
  ExpectFails(request, kInvalid, "tensors[0].role: got 7");
  request = Sample();
  request.mutable_tensors(0)->clear_layout();
  ExpectFails(request, kInvalid, "tensors[0].layout: got \"\"");
  request = Sample();
  request.mutable_tensors(0)->mutable_array()->clear_dtype();
  ExpectFails(request, kInvalid, "tensors[0].array.dtype: got DTYPE_UNSPECIFIED");
  request = Sample();
  request.mutable_tensors(0)->mutable_array()->clear_raw();
  ExpectFails(request, kInvalid, "tensors[0].array: got no elements");
  request = Sample();
  request.mutable_tensors(0)->clear_array();
  ExpectFails(request, kInvalid, "tensors[0].array.dtype: got DTYPE_UNSPECIFIED");
}

TEST(ValidateTensorsTest, StridesMustFitLayoutAndBytes) {
  const auto strided = [](const std::vector<int64_t>& strides, size_t bytes) {
    v1::RotateRequest request = Sample();
    v1::Array& array = *request.mutable_tensors(0)->mutable_array();
    array.mutable_strides()->Assign(strides.begin(), strides.end());
    array.set_raw(std::string(bytes, 0));
    return request;
  };
  EXPECT_THAT(Check(strided({20, 8, 1}, (2 * 20 + 8 + 8) * 4)), IsOk());
  ExpectFails(strided({20, 8, 1}, 192), kInvalid, "tensors[0].array.raw: got 192 bytes, want 224");
  ExpectFails(strided({8, 1}, 192), kInvalid,
              "tensors[0].array.strides: got 2 strides, want 3 for layout SHD");
  ExpectFails(strided({-16, 8, 1}, 192), kInvalid,
              "tensors[0].array.strides: got -16, want strides >= 0");
  ExpectFails(strided({int64_t{1} << 60, 8, 1}, 192), kInvalid, "an extent in bytes that fits");
}

TEST(ValidateTensorsTest, OutputLayoutsArePermutationsOneForEachTensor) {
  v1::RotateRequest request = Sample();
  AddTensor(request, "SHD", {3, 1, 8}, v1::ROLE_K);
  request.mutable_output()->add_layouts("HSD");
  ExpectFails(request, kInvalid, "output.layouts: got 1, want 2, one for each tensor");
  request.mutable_output()->add_layouts("");
  ASSERT_OK(plan, Check(request));
  EXPECT_EQ(plan->tensors[0].output_letters, "HSD");
  EXPECT_EQ(plan->tensors[1].output_letters, "SHD");
  for (const char* const bad : {"SHHD", "SD", "DHS", "SHDB"}) {
    request.mutable_output()->set_layouts(0, bad);
    ExpectFails(request, kInvalid,
                "output.layouts[0]: got \"" + std::string(bad) + "\", want the letters of SHD");
  }
}

TEST(ValidateTensorsTest, HeadRangesMustBeInOrderAndInside) {
  const auto expect = [](const std::string& text,
                         const std::vector<std::pair<int64_t, int64_t>>& ranges) {
    v1::RotateRequest request = Sample();
    request.mutable_tensors(0)->clear_role();
    for (const auto& [begin, end] : ranges) {
      v1::HeadRange& range = *request.mutable_tensors(0)->add_head_ranges();
      range.set_role(v1::ROLE_Q);
      range.set_begin(begin);
      range.set_end(end);
    }
    if (text.empty()) {
      EXPECT_THAT(Check(request), IsOk());
    } else {
      ExpectFails(request, kInvalid, text);
    }
  };
  expect("", {{0, 1}, {1, 2}});
  expect("", {{1, 1}});
  expect(
      "tensors[0].head_ranges[0]: got heads 0 to 3, want ranges in order, from head 0 to at "
      "most 2",
      {{0, 3}});
  expect("tensors[0].head_ranges[1]: got heads 0 to 1", {{0, 1}, {0, 1}});
  expect("tensors[0].head_ranges[0]: got heads -1 to 1", {{-1, 1}});
  expect("tensors[0].head_ranges[0]: got heads 2 to 1", {{2, 1}});
  v1::RotateRequest both = Sample();
  both.mutable_tensors(0)->add_head_ranges();
  ExpectFails(both, kInvalid, "tensors[0].role: got it together with head_ranges");
  both.mutable_tensors(0)->clear_role();
  both.mutable_tensors(0)->mutable_head_ranges(0)->set_role(static_cast<v1::Role>(9));
  ExpectFails(both, kInvalid, "tensors[0].head_ranges[0].role: got 9");
}

TEST(ValidateTensorsTest, HeadDimMustBeTheConfigs) {
  v1::RotateRequest request = Sample();
  request.mutable_rope()->mutable_config()->set_head_dim(16);
  ExpectFails(request, kInvalid, "tensors[0].array.shape: got D 8, want the config's head_dim 16");
}

TEST(ValidateTensorsTest, AllHaveTheSameTokenAxesAndHeadDim) {
  const std::pair<const char*, std::vector<int64_t>> others[] = {
      {"SHD", {4, 2, 8}}, {"THD", {3, 2, 8}}, {"BSHD", {1, 3, 2, 8}}};
  for (const auto& [layout, shape] : others) {
    v1::RotateRequest request = Sample();
    AddTensor(request, layout, shape);
    ExpectFails(request, kInvalid,
                absl::StrCat("tensors[1].layout: got ", layout, " of ", Brackets(shape),
                             ", want the axes B, S, T and L of tensors[0]"));
  }
  v1::RotateRequest request = Sample();
  AddTensor(request, "SHD", {3, 2, 4});
  ExpectFails(request, kInvalid, "tensors[1].array.shape: got D 4, want 8, as tensors[0]");
}

TEST(ValidateTensorsTest, TheModelsHeadsOnTheAxisOfTokensAreWarnedOf) {
  const struct {
    const char* layout;
    std::vector<int64_t> shape;
    v1::Role role;
    const char* warning;  // null: none
  } cases[] = {
      {"SHD", {32, 4, 128}, v1::ROLE_Q, "tensors[0].layout: SHD has H 4 and S 32"},
      {"BSHD", {1, 8, 16, 128}, v1::ROLE_K, "the model has 8 heads; is it BHSD?"},
      {"BSHD", {1, 8, 8, 128}, v1::ROLE_K, nullptr},
      {"SHD", {8, 32, 128}, v1::ROLE_Q, nullptr},
      {"SHD", {31, 4, 128}, v1::ROLE_Q, nullptr},
      {"BHSD", {1, 16, 8, 128}, v1::ROLE_K, nullptr},
  };
  for (const auto& [layout, shape, role, warning] : cases) {
    v1::RotateRequest request;
    request.mutable_rope()->set_model("llama-3.1-8b");
    request.mutable_positions()->set_start(5);
    AddTensor(request, layout, shape, role);
    ASSERT_OK(plan, Check(request));
    ASSERT_EQ(plan->warnings.size(), warning == nullptr ? 0U : 1U) << layout;
    if (warning == nullptr) continue;
    EXPECT_THAT(plan->warnings[0], HasSubstr(warning));
  }
}

TEST(ValidateTensorsTest, HeadsMayStandElsewhereInAnother) {
  v1::RotateRequest request = Sample();
  AddTensor(request, "HSD", {5, 3, 8}, v1::ROLE_K);
  ASSERT_OK(plan, Check(request));
  EXPECT_EQ(plan->tensors[1].layout.post, 3);
}

TEST(ValidateTensorsTest, TokensAboveTheCapAreRefusedEvenWithoutBytes) {
  v1::RotateRequest request = Sample();
  request.clear_tensors();
  AddTensor(request, "BSHD", {limits::kTokensMax, 2, 0, 8});
  ExpectFails(request, kExhausted, "tensors[0].array.shape: got 8388608 tokens, want at most");
  request.clear_tensors();
  AddTensor(request, "BSHD", {limits::kTokensMax + 1, 0, 1, 8});
  ExpectFails(request, kExhausted, "tensors[0].array.shape: got 4194305 tokens");
}

TEST(ValidateTensorsTest, HeadsOfEmptyTensorsDoNotOverflow) {
  v1::RotateRequest request = Sample();
  request.clear_tensors();
  for (int i = 0; i < 4; ++i) AddTensor(request, "SHD", {0, int64_t{1} << 57, 8});
  ExpectFails(request, kInvalid, "tensors: got heads past 63 bits");
}

TEST(ValidateTensorsTest, BytesOfAllTensorsTogetherDoNotOverflow) {
  v1::RotateRequest request = Sample();
  request.clear_tensors();
  for (int i = 0; i < 2; ++i) {
    v1::Array& array = *AddTensor(request, "SHD", {0, 2, 8}).mutable_array();
    array.clear_shape();
    for (const int64_t length : {int64_t{4}, int64_t{1} << 55, int64_t{8}}) array.add_shape(length);
  }
  ExpectFails(request, kInvalid, "tensors: got bytes past 63 bits");
}

TEST(ValidateTensorsTest, NoTokensAndNoHeadsAreLegal) {
  v1::RotateRequest request = Sample();
  request.clear_tensors();
  AddTensor(request, "SHD", {0, 2, 8});
  ASSERT_OK(no_tokens, Check(request));
  EXPECT_EQ(no_tokens->tokens, 0);
  request.clear_tensors();
  AddTensor(request, "SHD", {3, 0, 8});
  ASSERT_OK(no_heads, Check(request));
  EXPECT_EQ(no_heads->bytes(), 0);
}

TEST(ValidateRequestTest, LongRequestIdIsInvalid) {
  v1::RotateRequest request = Sample();
  request.set_request_id(std::string(128, 'x'));
  EXPECT_THAT(Check(request), IsOk());
  request.set_request_id(std::string(129, 'x'));
  ExpectFails(request, kInvalid, "request_id: got 129 bytes, want at most 128");
}

TEST(ValidateRequestTest, LabelsAreBounded) {
  v1::RotateRequest request = Sample();
  auto& labels = *request.mutable_labels();
  for (int i = 0; i < 16; ++i)
    labels[std::string(64, static_cast<char>('a' + i))] = std::string(256, 'x');
  EXPECT_THAT(Check(request), IsOk());
  labels["one"] = "more";
  ExpectFails(request, kInvalid, "labels: got 17 labels, want at most 16");
  labels.clear();
  labels[""] = "x";
  ExpectFails(request, kInvalid, "labels: got a key of 0 bytes, want 1 to 64");
  labels.clear();
  labels[std::string(65, 'k')] = "x";
  ExpectFails(request, kInvalid, "labels: got a key of 65 bytes, want 1 to 64");
  labels.clear();
  labels["pod"] = std::string(257, 'x');
  ExpectFails(request, kInvalid, "labels[pod]: got 257 bytes, want at most 256");
}

TEST(ValidateRequestTest, TensorOfVIsNotBuiltYet) {
  v1::RotateRequest request = Sample();
  request.mutable_tensors(0)->set_role(v1::ROLE_V);
  ExpectFails(request, absl::StatusCode::kUnimplemented, "tensors[0].role: got ROLE_V");
}

TEST(ValidateRequestTest, MissingRopePositionsAndPairingAreNamed) {
  v1::RotateRequest request = Sample();
  request.clear_rope();
  ExpectFails(request, kInvalid, "rope: got nothing");
  request = Sample();
  request.clear_positions();
  ExpectFails(request, kInvalid, "positions: got nothing");
  request = Sample();
  request.mutable_rope()->clear_pairing();
  ExpectFails(request, kInvalid, "rope.pairing: got nothing");
}

TEST(ValidateOperationTest, InverseAndBackwardTurnBack) {
  for (const auto operation : {v1::OPERATION_INVERSE, v1::OPERATION_BACKWARD}) {
    v1::RotateRequest request = Sample();
    request.set_operation(operation);
    ASSERT_OK(plan, Check(request));
    EXPECT_TRUE(plan->conjugate);
  }
}

TEST(ValidateOperationTest, UnknownOnesAreRefused) {
  v1::RotateRequest request = Sample();
  request.set_operation(static_cast<v1::Operation>(77));
  ExpectFails(request, kInvalid, "operation: got 77, want OPERATION_ROTATE");
}

v1::RotateRequest RepositionSample(int64_t from) {
  v1::RotateRequest request = Sample();
  request.set_operation(v1::OPERATION_REPOSITION);
  request.mutable_reposition()->mutable_from()->set_start(from);
  return request;
}

TEST(ValidateRepositionTest, WithinOneEmbeddingTheDifferenceOfPositionsSaysAll) {
  ASSERT_OK(plan, Check(RepositionSample(9)));
  EXPECT_THAT(plan->positions[0], ElementsAre(-4, -4, -4));
  ASSERT_THAT(plan->row_sets[0].runs, SizeIs(1));
  EXPECT_EQ(plan->row_sets[0].runs[0].from, nullptr);
  EXPECT_EQ(plan->attention_factor, 1);
}

TEST(ValidateRepositionTest, AcrossEmbeddingsBothSidesAreKept) {
  v1::RotateRequest request = RepositionSample(9);
  *request.mutable_reposition()->mutable_from_rope() = request.rope();
  request.mutable_reposition()->mutable_from_rope()->mutable_config()->set_rope_theta(77);
  ASSERT_OK(plan, Check(request));
  ASSERT_THAT(plan->row_sets[0].runs, SizeIs(1));
  EXPECT_NE(plan->row_sets[0].runs[0].from, nullptr);
  EXPECT_THAT(plan->positions[0], ElementsAre(5, 6, 7));
  EXPECT_THAT(plan->from_positions[0], ElementsAre(9, 10, 11));
}

TEST(ValidateRepositionTest, MoveToALengthWithOtherFrequenciesIsWarnedOf) {
  v1::RotateRequest request = LongropeSample(1, 2);
  request.set_operation(v1::OPERATION_REPOSITION);
  request.mutable_positions()->set_start(0);
  request.mutable_reposition()->mutable_from()->set_start(1);
  ASSERT_OK(within, Check(request));
  EXPECT_THAT(within->warnings, IsEmpty());
  request.mutable_reposition()->mutable_from()->set_start(8);
  ASSERT_OK(across, Check(request));
  EXPECT_THAT(across->warnings, ElementsAre(StartsWith("reposition: the lengths before and after "
                                                       "have different frequencies")));
}

TEST(ValidateRepositionTest, WhatDoesNotFitIsRefusedByName) {
  v1::RotateRequest request = Sample();
  request.set_operation(v1::OPERATION_REPOSITION);
  ExpectFails(request, kInvalid, "reposition: got nothing");
  request.mutable_reposition();
  ExpectFails(request, kInvalid, "reposition.from: got nothing, want exactly one of start");
  request.set_operation(v1::OPERATION_ROTATE);
  ExpectFails(request, kInvalid, "reposition: got it without OPERATION_REPOSITION");
  ExpectFails(RepositionSample(-1), kInvalid, "reposition.from.start: got -1");
  ExpectFails(RepositionSample(limits::kPositionMax + 1), absl::StatusCode::kOutOfRange,
              "reposition.from.start: got 1073741825");
}

TEST(ValidateRepositionTest, EmbeddingsThatNoRotationLeadsBetweenAreRefused) {
  const auto expect = [](const std::string& text, const auto& change) {
    v1::RotateRequest request = RepositionSample(9);
    v1::RopeSpec& from = *request.mutable_reposition()->mutable_from_rope();
    from = request.rope();
    change(from);
    ExpectFails(request, kInvalid, text);
  };
  expect("reposition.from_rope.pairing: got a different pairing",
         [](v1::RopeSpec& from) { from.set_pairing(v1::PAIRING_INTERLEAVED); });
  expect("reposition.from_rope: got rotary_dim 4, want 8",
         [](v1::RopeSpec& from) { from.mutable_config()->set_rotary_dim(4); });
  expect("reposition.from_rope.config.rope_theta: got -1",
         [](v1::RopeSpec& from) { from.mutable_config()->set_rope_theta(-1); });
  expect("operation: got OPERATION_REPOSITION with attention factor 0", [](v1::RopeSpec& from) {
    v1::RopeConfig& config = *from.mutable_config();
    config.set_rope_type("yarn");
    config.set_factor(2);
    config.set_original_max_position_embeddings(16);
    config.set_attention_factor(0);
  });
  v1::RotateRequest unknown = RepositionSample(9);
  unknown.mutable_reposition()->mutable_from_rope()->set_model("nobody");
  ExpectFails(unknown, absl::StatusCode::kNotFound, "reposition.from_rope.model: got \"nobody\"");
}

// The multiplier on cos and sin of a longrope plan with attention factor 2.
absl::StatusOr<double> MultiplierOf(v1::Operation operation, bool return_factor) {
  v1::RotateRequest request = LongropeSample(1, 1);
  request.mutable_positions()->set_start(0);
  request.mutable_rope()->mutable_config()->set_attention_factor(2);
  request.set_operation(operation);
  request.set_skip_attention_factor(return_factor);
  const auto plan = Check(request);
  if (!plan.ok()) return plan.status();
  EXPECT_EQ(plan->attention_factor, 2);
  EXPECT_EQ(plan->attention_factor_applied, !return_factor);
  return plan->row_sets[0].runs.at(0).frequencies->multiplier;
}

TEST(ValidateOperationTest, AttentionFactorIsAppliedDividedOrLeftToTheCaller) {
  EXPECT_THAT(*MultiplierOf(v1::OPERATION_ROTATE, false), 2);
  EXPECT_THAT(*MultiplierOf(v1::OPERATION_BACKWARD, false), 2);
  EXPECT_THAT(*MultiplierOf(v1::OPERATION_INVERSE, false), 0.5);
  for (const auto operation :
       {v1::OPERATION_ROTATE, v1::OPERATION_INVERSE, v1::OPERATION_BACKWARD}) {
    EXPECT_THAT(*MultiplierOf(operation, true), 1);
  }
}

TEST(ValidateOperationTest, InverseOfAFactorThatCannotBeDividedByIsInvalid) {
  for (const double factor : {0.0, 1e-310, 1e-39}) {
    v1::RotateRequest request = LongropeSample(1, 1);
    request.mutable_positions()->set_start(0);
    request.mutable_rope()->mutable_config()->set_attention_factor(factor);
    EXPECT_THAT(Check(request), IsOk());
    request.set_operation(v1::OPERATION_INVERSE);
    ExpectFails(request, kInvalid, "operation: got OPERATION_INVERSE with attention factor");
    request.set_skip_attention_factor(true);
    EXPECT_THAT(Check(request), IsOk());
  }
}

TEST(ValidateRunsTest, LongropeSplitsAtTheOriginalLengthOfEachSequence) {
  v1::RotateRequest request = LongropeSample(3, 2);
  for (const double start : {0.0, 2.0, 10.0}) {
    request.mutable_positions()->mutable_starts()->add_numbers(start);
  }
  ASSERT_OK(plan, Check(request));
  ASSERT_THAT(plan->row_sets[0].runs,
              SizeIs(2));  // lengths 2 and 4 use the short list, 12 the long one
  EXPECT_EQ(plan->row_sets[0].runs[0].end, 4);
  EXPECT_EQ(plan->row_sets[0].runs[1].begin, 4);
  EXPECT_EQ(plan->row_sets[0].runs[1].end, 6);
  EXPECT_NE(plan->row_sets[0].runs[0].frequencies->key.operator==(
                plan->row_sets[0].runs[1].frequencies->key),
            true);
}

TEST(ValidateRunsTest, SequencesInTurnGiveARunEach) {
  v1::RotateRequest request = LongropeSample(1, 1);
  request.clear_tensors();
  AddTensor(request, "SBD", {2, 2, 4});
  for (const double start : {0.0, 10.0}) {
    request.mutable_positions()->mutable_starts()->add_numbers(start);
  }
  ASSERT_OK(plan, Check(request));
  ASSERT_THAT(plan->row_sets[0].runs, SizeIs(4));
  EXPECT_EQ(plan->row_sets[0].runs[0].frequencies, plan->row_sets[0].runs[2].frequencies);
  EXPECT_EQ(plan->row_sets[0].runs[3].begin, 3);
  EXPECT_EQ(plan->row_sets[0].runs[3].end, 4);
}

v1::RotateRequest DynamicSample(int64_t batch) {
  v1::RotateRequest request;
  v1::RopeConfig& config = *request.mutable_rope()->mutable_config();
  config.set_rope_type("dynamic");
  config.set_head_dim(8);
  config.set_factor(2);
  config.set_max_position_embeddings(16);
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  request.mutable_positions()->set_start(0);
  AddTensor(request, "BSD", {batch, 2, 8});
  return request;
}

TEST(ValidateRunsTest, DynamicChoosesForEachSequence) {
  v1::RotateRequest request = DynamicSample(3);
  for (const int64_t length : {16, 17, 32}) request.mutable_positions()->add_seq_lens(length);
  ASSERT_OK(plan, Check(request));
  ASSERT_THAT(plan->row_sets[0].runs, SizeIs(3));
  EXPECT_TRUE(plan->row_sets[0].runs[0].frequencies->cacheable);
  EXPECT_FALSE(plan->row_sets[0].runs[1].frequencies->cacheable);
  EXPECT_FALSE(plan->row_sets[0].runs[2].frequencies->cacheable);
  EXPECT_NE(plan->row_sets[0].runs[1].frequencies->inv_freq,
            plan->row_sets[0].runs[2].frequencies->inv_freq);
}

TEST(ValidateRunsTest, SequencesOfOneLengthShareTheirFrequencies) {
  v1::RotateRequest request = DynamicSample(4);
  request.mutable_positions()->add_seq_lens(100);
  ASSERT_OK(plan, Check(request));
  EXPECT_THAT(plan->row_sets[0].runs, SizeIs(1));
}

TEST(ValidateRunsTest, TokensWithoutBytesNeedNoFrequencies) {
  v1::RotateRequest request = DynamicSample(1);
  request.clear_tensors();
  AddTensor(request, "BSHD", {2, 1, 0, 8});
  for (const int64_t length : {100, 200}) request.mutable_positions()->add_seq_lens(length);
  ASSERT_OK(plan, Check(request));
  EXPECT_THAT(plan->row_sets[0].runs, IsEmpty());
}

TEST(ValidateMropeTest, ThreeRowsReachThePlanAndOneRowIsPlain) {
  v1::RotateRequest request = Sample();
  for (const int64_t count : {2, 1, 1}) {
    request.mutable_rope()->mutable_config()->add_mrope_section(count);
  }
  EXPECT_EQ(Check(request)->mrope, nullptr);
  v1::Array& ids = *request.mutable_positions()->mutable_position_ids();
  request.mutable_positions()->clear_start();
  SetShape(ids, {3, 3});
  for (int i = 0; i < 9; ++i) ids.add_numbers(i);
  ASSERT_OK(plan, Check(request));
  EXPECT_NE(plan->mrope, nullptr);
  EXPECT_THAT(plan->positions[2], ElementsAre(6, 7, 8));
}

TEST(ValidateWarningsTest, PastTheModelsLengthOnly) {
  v1::RotateRequest request = Sample();  // positions 5, 6, 7
  request.mutable_rope()->mutable_config()->set_max_position_embeddings(8);
  EXPECT_THAT(Check(request)->warnings, IsEmpty());
  request.mutable_rope()->mutable_config()->set_max_position_embeddings(7);
  EXPECT_THAT(Check(request)->warnings,
              ElementsAre(HasSubstr("positions: up to 7, past the model's 7")));
}

TEST(ValidateNoRopeTest, LayerPassesWithAWarning) {
  ASSERT_OK(plan, Check(NoRopeSample()));
  EXPECT_FALSE(plan->rotates);
  EXPECT_THAT(plan->warnings, Contains(HasSubstr("layer 1 does not rotate")));
  EXPECT_EQ(plan->attention_factor, 1);
  v1::RotateRequest other = NoRopeSample();
  other.mutable_rope()->set_layer(0);
  EXPECT_TRUE(Check(other)->rotates);
}

TEST(ValidateNoRopeTest, MalformedRequestIsStillRefused) {
  v1::RotateRequest request = NoRopeSample();
  request.set_operation(static_cast<v1::Operation>(77));
  ExpectFails(request, kInvalid, "operation: got 77");
  request = NoRopeSample();
  request.clear_positions();
  ExpectFails(request, kInvalid, "positions: got nothing");
  request = NoRopeSample();
  request.mutable_positions()->set_start(-1);
  ExpectFails(request, kInvalid, "positions.start: got -1");
}

}  // namespace
}  // namespace rope::server
