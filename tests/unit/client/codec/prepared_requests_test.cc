#include "client/codec/prepared_requests.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/error.h"

namespace rope::client {
namespace {

constexpr float kWeight[] = {1, 2};
constexpr float kOtherWeight[] = {1, 3};

RotateRequest RequestFor(const std::string& model = "m") {
  static const std::vector<float> data(4);
  RotateRequest request{.rope = {.model = model}, .positions = {.start = 3}};
  request.tensors = {{.layout = "TD", .shape = {2, 2}, .data = data.data()}};
  return request;
}

std::shared_ptr<const PreparedState> StateOf(const PreparedUse& use, const std::string& id) {
  return std::make_shared<const PreparedState>(
      PreparedState{.preparation = use.preparation, .id = id});
}

class PreparedRequestsTest : public ::testing::Test {
 protected:
  // Sends a request until it is due, and has the server answer the question with `id`.
  void Prepare(const RotateRequest& request, const std::string& id) {
    static_cast<void>(requests_.UseOf(request));
    const PreparedUse use = requests_.UseOf(request);
    ASSERT_TRUE(requests_.TakeTurn(use));
    requests_.NoteAnswer(use.preparation, StateOf(use, id));
  }
  // Number of requests that are sent whole until one may ask.
  int SendsUntilDue(const RotateRequest& request) {
    for (int sends = 1; sends < 5000; ++sends) {
      if (requests_.TakeTurn(requests_.UseOf(request))) return sends;
    }
    return 0;
  }
  void Answer(const RotateRequest& request, const Status& status) {
    requests_.NoteAnswer(requests_.UseOf(request).preparation, status);
  }

  PreparedRequests requests_{/*finds_repeats=*/true};
};

TEST_F(PreparedRequestsTest, TheSecondOfEqualRequestsMayAskAndTheNextHasTheId) {
  EXPECT_FALSE(requests_.UseOf(RequestFor()).is_due);
  const PreparedUse second = requests_.UseOf(RequestFor());
  EXPECT_TRUE(second.is_due);
  EXPECT_EQ(second.id, nullptr);
  EXPECT_TRUE(requests_.TakeTurn(second));
  EXPECT_FALSE(requests_.TakeTurn(second)) << "somebody asks already";
  requests_.NoteAnswer(second.preparation, StateOf(second, "id"));
  const PreparedUse third = requests_.UseOf(RequestFor());
  ASSERT_NE(third.id, nullptr);
  EXPECT_EQ(*third.id, "id");
}

TEST_F(PreparedRequestsTest, ValuesMayDiffer) {
  Prepare(RequestFor(), "id");
  RotateRequest other = RequestFor();
  const std::vector<float> data(4);
  std::vector<float> output(4);
  other.request_id = "mine";
  other.labels = {{"a", "b"}};
  other.positions = {.position_ids = {1, 2}};
  other.tensors[0].data = data.data();
  other.tensors[0].output = output.data();
  EXPECT_NE(requests_.UseOf(other).id, nullptr);
}

TEST_F(PreparedRequestsTest, EverythingElseIsAnotherRequest) {
  RotateRequest base = RequestFor();
  base.tensors[0].norm = HeadNorm{.eps = 1e-6, .weight = {.shape = {2}, .data = kWeight}};
  base.tensors[0].scale = 0.0;
  base.operation = Operation::kReposition;
  base.reposition = Reposition{};
  Prepare(base, "id");
  ASSERT_NE(requests_.UseOf(base).id, nullptr);
  const std::vector<std::function<void(RotateRequest&)>> changes = {
      [](RotateRequest& r) { r.rope.model = "n"; },
      [](RotateRequest& r) { r.rope.layer = 0; },
      [](RotateRequest& r) { r.rope.config = RopeConfig{.factor = 2}; },
      [](RotateRequest& r) { r.rope.precision = Precision::kHf; },
      [](RotateRequest& r) { r.operation = Operation::kInverse; },
      [](RotateRequest& r) { r.reposition.reset(); },
      [](RotateRequest& r) { r.reposition->from_rope = RopeSpec{.model = "m"}; },
      [](RotateRequest& r) { r.skip_attention_factor = true; },
      [](RotateRequest& r) { r.output_dtype = DType::kFloat32; },
      [](RotateRequest& r) { r.channel_order = Pairing::kHalf; },
      [](RotateRequest& r) { r.tensors.push_back(r.tensors[0]); },
      [](RotateRequest& r) { r.tensors[0].role = Role::kK; },
      [](RotateRequest& r) { r.tensors[0].layout = "SD"; },
      [](RotateRequest& r) { r.tensors[0].dtype = DType::kBFloat16; },
      [](RotateRequest& r) {
        r.tensors[0].shape = {1, 2};
      },
      [](RotateRequest& r) {
        r.tensors[0].strides = {2, 1};
      },
      [](RotateRequest& r) { r.tensors[0].head_ranges = {{.begin = 0, .end = 1}}; },
      [](RotateRequest& r) { r.tensors[0].output_layout = "TD"; },
      [](RotateRequest& r) { r.tensors[0].norm->eps = 1e-5; },
      [](RotateRequest& r) { r.tensors[0].norm->weight.data = kOtherWeight; },
      [](RotateRequest& r) { r.tensors[0].norm.reset(); },
      [](RotateRequest& r) { r.tensors[0].scale = -0.0; },
      [](RotateRequest& r) { r.tensors[0].scale.reset(); },
      [](RotateRequest& r) { r.tensors[0].llama4_scaling_beta = 0.1; },
      [](RotateRequest& r) { r.tensors[0].fp8_scale = 1; },
      [](RotateRequest& r) { r.tensors[0].rotary_offset = 0; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    RotateRequest changed = base;
    changes[i](changed);
    EXPECT_EQ(requests_.UseOf(changed).id, nullptr) << "change " << i;
    EXPECT_NE(requests_.UseOf(base).id, nullptr);
  }
}

TEST_F(PreparedRequestsTest, WeightsAreComparedByTheirValuesAtTheTime) {
  std::vector<float> weight = {1, 2};
  RotateRequest request = RequestFor();
  request.tensors[0].norm = HeadNorm{.eps = 1e-6, .weight = {.shape = {2}, .data = weight.data()}};
  Prepare(request, "id");
  EXPECT_NE(requests_.UseOf(request).id, nullptr);
  weight[1] = 3;
  EXPECT_EQ(requests_.UseOf(request).id, nullptr);
}

TEST_F(PreparedRequestsTest, RowsAreValuesAndAreNotPrepared) {
  RotateRequest request = RequestFor();
  request.rows = Rows{};
  EXPECT_EQ(requests_.UseOf(request).preparation, nullptr);
  EXPECT_EQ(SendsUntilDue(request), 0);
}

TEST_F(PreparedRequestsTest, TheLeastRecentlyUsedEntryGoesFirst) {
  Prepare(RequestFor("kept"), "kept");
  Prepare(RequestFor("oldest"), "oldest");
  for (size_t i = 2; i < PreparedRequests::kEntriesMax; ++i) {
    static_cast<void>(requests_.UseOf(RequestFor(std::to_string(i))));
  }
  EXPECT_NE(requests_.UseOf(RequestFor("kept")).id, nullptr);
  static_cast<void>(requests_.UseOf(RequestFor("one more")));
  EXPECT_NE(requests_.UseOf(RequestFor("kept")).id, nullptr);
  EXPECT_EQ(requests_.UseOf(RequestFor("oldest")).id, nullptr);
}

TEST_F(PreparedRequestsTest, AForgottenIdIsNotUsedAgainAndIsAskedForLater) {
  Prepare(RequestFor(), "id");
  requests_.NoteForgotten(requests_.UseOf(RequestFor()));
  EXPECT_EQ(requests_.UseOf(RequestFor()).id, nullptr);
  EXPECT_EQ(SendsUntilDue(RequestFor()), 1);
}

TEST_F(PreparedRequestsTest, ALateWordThatAnIdIsForgottenLeavesTheNewIdAlone) {
  Prepare(RequestFor(), "id");
  const PreparedUse use = requests_.UseOf(RequestFor());
  requests_.NoteForgotten(use);
  ASSERT_EQ(SendsUntilDue(RequestFor()), 2);
  requests_.NoteAnswer(use.preparation, StateOf(use, "new"));
  requests_.NoteForgotten(use);
  const PreparedUse next = requests_.UseOf(RequestFor());
  ASSERT_NE(next.id, nullptr);
  EXPECT_EQ(*next.id, "new");
}

TEST_F(PreparedRequestsTest, AnErrorThatMayPassIsAskedAboutEverLessOften) {
  static_cast<void>(requests_.UseOf(RequestFor()));
  ASSERT_EQ(SendsUntilDue(RequestFor()), 1);
  for (const int sends : {2, 4, 8}) {
    const PreparedUse use = requests_.UseOf(RequestFor());
    requests_.NoteAnswer(use.preparation, Status(StatusCode::kUnavailable, "draining"));
    EXPECT_EQ(SendsUntilDue(RequestFor()), sends);
  }
}

TEST_F(PreparedRequestsTest, AnErrorThatStaysIsAskedAboutOnce) {
  static_cast<void>(requests_.UseOf(RequestFor()));
  ASSERT_EQ(SendsUntilDue(RequestFor()), 1);
  Answer(RequestFor(), InvalidField("rotate.tensors", "1", "2"));
  EXPECT_EQ(SendsUntilDue(RequestFor()), 0);
}

TEST_F(PreparedRequestsTest, SwitchedOffOnlyPreparedRotationsAreFound) {
  PreparedRequests requests(/*finds_repeats=*/false);
  EXPECT_EQ(requests.UseOf(RequestFor()).preparation, nullptr);
  EXPECT_EQ(requests.UseOf(RequestFor()).preparation, nullptr);
  RotateRequest request;
  request.prepared = PreparedState::RotationOf(std::make_shared<const PreparedState>(
      PreparedState{.preparation = Preparation::Create(RequestFor()).value(), .id = "id"}));
  const PreparedUse use = requests.UseOf(request);
  ASSERT_NE(use.id, nullptr);
  EXPECT_EQ(*use.id, "id");
  requests.NoteForgotten(use);
  const PreparedUse whole = requests.UseOf(request);
  EXPECT_EQ(whole.id, nullptr);
  EXPECT_TRUE(whole.is_due) << "who says that a request repeats has it prepared again at once";
}

}  // namespace
}  // namespace rope::client
