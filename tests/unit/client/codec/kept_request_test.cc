#include "client/codec/codec.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace rope::client {
namespace {

// A request whose arrays can be freed, as a caller may once RotateAsync has returned.
struct Caller {
  std::vector<float> data = std::vector<float>(8, 1.f);
  std::unique_ptr<std::vector<float>> cos = std::make_unique<std::vector<float>>(2, 0.5f);
  std::unique_ptr<std::vector<float>> sin = std::make_unique<std::vector<float>>(2, 0.25f);
  std::unique_ptr<std::vector<float>> weight = std::make_unique<std::vector<float>>(4, 2.f);
  RotateRequest request;

  Caller() {
    request.request_id = "mine";
    request.positions.start = 7;
    request.tensors = {{.layout = "SD", .shape = {2, 4}, .data = data.data()}};
  }
  void AddRows() {
    request.rows = Rows{.cos = ArrayView{.shape = {1, 2}, .data = cos->data()},
                        .sin = ArrayView{.shape = {1, 2}, .data = sin->data()}};
  }
  void AddNorm() {
    request.tensors[0].norm = HeadNorm{.eps = 1, .weight = {.shape = {4}, .data = weight->data()}};
  }
  void FreeArrays() {
    cos.reset();
    sin.reset();
    weight.reset();
  }
};

float First(const ArrayView& view) {
  return *static_cast<const float*>(view.data);
}

TEST(KeptRequestTest, RowsAndWeightsOutliveTheCallersRequest) {
  Caller caller;
  caller.AddRows();
  caller.AddNorm();
  const auto kept = Keep(caller.request, {}).value();
  caller.FreeArrays();
  caller.request = {};
  const RotateRequest& request = kept->request;
  EXPECT_EQ(request.request_id, "mine");
  EXPECT_EQ(request.positions.start, 7);
  EXPECT_EQ(request.tensors[0].data, caller.data.data());
  EXPECT_EQ(First(*request.rows->cos), 0.5f);
  EXPECT_EQ(First(*request.rows->sin), 0.25f);
  EXPECT_EQ(First(request.tensors[0].norm->weight), 2.f);
}

TEST(KeptRequestTest, RowsInTheRegionAreBorrowed) {
  Caller caller;
  caller.AddRows();
  const Region process = {.ids = std::make_shared<RegionIds>(7),
                          .process_outputs = OutputPool::Make(0)};
  const auto kept = Keep(caller.request, process).value();
  EXPECT_EQ(kept->request.rows->cos->data, caller.cos->data());
}

}  // namespace
}  // namespace rope::client
