// Decode loops: consecutive requests that differ only in their numbers.
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/cli/golden.h"
#include "kernels/config/config_json.h"
#include "kernels/config/presets.h"
#include "kernels/frequencies/frequencies.h"
#include "rope/client.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using client::Client;
using client::DType;
using client::GoldenFile;
using client::GoldenTensor;
using client::Role;
using client::RotateReply;
using client::RotateRequest;

// Positions at which the varint becomes a byte longer.
constexpr int64_t kBegins[] = {0, 120, 16376, 131064};
constexpr int64_t kSteps = 16;

// A preset resolved without a server.
std::shared_ptr<const kernels::ResolvedRope> ResolvedPreset(const std::string& name) {
  for (const kernels::Preset& preset : kernels::Presets()) {
    if (preset.name != name) continue;
    return *kernels::Resolve(kernels::ModelConfig::Parse(preset.config_json)->Layer({})->config);
  }
  return nullptr;
}

// A sequence in a decode loop: q and k of one token for each step, with new elements each time.
class Sequence {
 public:
  Sequence(const std::string& model, DType dtype, int64_t heads, uint32_t seed)
      : model_(model), dtype_(dtype), resolved_(ResolvedPreset(model)), random_(seed) {
    golden_.pairing = client::Pairing::kHalf;
    golden_.head_dim = resolved_->head_dim();
    golden_.rotary_dim = resolved_->rotary_dim();
    golden_.tokens = 1;
    golden_.attention_factor = resolved_->attention_factor();
    for (const Role role : {Role::kQ, Role::kK}) {
      GoldenTensor& tensor = golden_.tensors.emplace_back();
      tensor.role = role;
      tensor.heads = role == Role::kQ ? heads : 1;
    }
  }

  // The request of the next step, at `position`. Valid until the next call.
  const RotateRequest& Next(int64_t position) {
    position_ = position;
    request_ = {.request_id = model_ + "-" + std::to_string(++step_),
                .rope = {.model = model_},
                .positions = {.start = position}};
    data_.clear();
    for (GoldenTensor& tensor : golden_.tensors) {
      Fill(tensor);
      data_.push_back(client::Store(tensor.input, dtype_));
    }
    for (size_t i = 0; i < data_.size(); ++i) {
      const GoldenTensor& tensor = golden_.tensors[i];
      request_.tensors.push_back({.role = tensor.role,
                                  .layout = "SHD",
                                  .dtype = dtype_,
                                  .shape = {1, tensor.heads, golden_.head_dim},
                                  .data = data_[i].data(),
                                  .output = data_[i].data()});
    }
    return request_;
  }

  // True when the reply is the right answer to the step.
  void Check(const Result<RotateReply>& reply) const {
    SCOPED_TRACE(request_.request_id + " at " + std::to_string(position_));
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    EXPECT_EQ(reply->request_id, request_.request_id);
    ASSERT_EQ(reply->tensors.size(), golden_.tensors.size());
    for (size_t i = 0; i < golden_.tensors.size(); ++i) {
      const client::Deviation deviation =
          client::Compare(golden_, golden_.tensors[i], dtype_, reply->tensors[i].data);
      EXPECT_LE(deviation.ratio, 1) << deviation.where;
    }
    const auto length = resolved_->config().max_position_embeddings;
    if (length.has_value() && position_ >= *length) {
      EXPECT_THAT(reply->warnings, ElementsAre(HasSubstr("up to " + std::to_string(position_))));
    } else {
      EXPECT_THAT(reply->warnings, IsEmpty());
    }
  }

 private:
  void Fill(GoldenTensor& tensor) {
    const auto head_dim = static_cast<size_t>(golden_.head_dim);
    const auto pairs = static_cast<size_t>(golden_.rotary_dim / 2);
    const std::vector<kernels::InverseFrequency> inv_freq =
        resolved_->Evaluate(position_ + 1).inv_freq;
    tensor.input.resize(static_cast<size_t>(tensor.heads) * head_dim);
    // Multiples of 1/16 below 4, which every dtype represents exactly.
    for (double& value : tensor.input) value = static_cast<double>(random_() % 128) / 16 - 4;
    tensor.expected = tensor.input;
    for (size_t row = 0; row < tensor.input.size(); row += head_dim) {
      for (size_t i = 0; i < pairs; ++i) {
        const auto [cos, sin] =
            kernels::ExactCosSin(position_, inv_freq[i], resolved_->attention_factor());
        const double x = tensor.input[row + i];
        const double y = tensor.input[row + i + pairs];
        tensor.expected[row + i] = x * cos - y * sin;
        tensor.expected[row + i + pairs] = y * cos + x * sin;
      }
    }
  }

  const std::string model_;
  const DType dtype_;
  const std::shared_ptr<const kernels::ResolvedRope> resolved_;
  std::minstd_rand random_;
  GoldenFile golden_;
  RotateRequest request_;
  std::vector<std::vector<std::byte>> data_;
  int64_t position_ = 0;
  int64_t step_ = 0;
};

class DecodeTest : public ::testing::Test {
 protected:
  TestServer server_;
  Client client_ = *Client::Connect(server_.address());
};

// Two models take turns.
TEST_F(DecodeTest, EveryStepIsRight) {
  Sequence llama("llama-3.1-8b", DType::kBFloat16, 4, 1);
  Sequence phi("phi-2", DType::kFloat32, 3, 2);
  for (const int64_t begin : kBegins) {
    for (int64_t step = 0; step < kSteps && !HasFailure(); ++step) {
      llama.Check(client_.Rotate(llama.Next(begin + step)));
      phi.Check(client_.Rotate(phi.Next(begin + step)));
    }
  }
  for (int64_t step = 0; step < 60 && !HasFailure(); ++step) {  // request ids of up to three digits
    llama.Check(client_.Rotate(llama.Next(1000 + step)));
  }
}

TEST_F(DecodeTest, ServersOwnIdsAreNeverThoseOfAnotherStep) {
  Sequence llama("llama-3.1-8b", DType::kBFloat16, 4, 1);
  std::string last;
  for (int64_t step = 0; step < 20; ++step) {
    RotateRequest request = llama.Next(100 + step);
    request.request_id.clear();
    ASSERT_OK(reply, client_.Rotate(request));
    EXPECT_FALSE(reply->request_id.empty());
    EXPECT_NE(reply->request_id, last);
    last = reply->request_id;
  }
}

TEST_F(DecodeTest, StepThatIsRefusedIsNamedAndTheLoopGoesOn) {
  Sequence llama("llama-3.1-8b", DType::kBFloat16, 4, 1);
  for (int64_t step = 0; step < 5; ++step)
    llama.Check(client_.Rotate(llama.Next(200000000 + step)));
  const auto refused = client_.Rotate(llama.Next((int64_t{1} << 30) + 1));
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(refused.status().detail().field, "positions.start");
  llama.Check(client_.Rotate(llama.Next(int64_t{1} << 30)));
}

}  // namespace
}  // namespace rope::testing
