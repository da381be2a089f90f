// Requests of every kind, from Protobuf to rotated bytes, through the server's engine over every
// backend, compared with the exact answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/dtype/element.h"
#include "proto/mutex.h"
#include "tests/conformance/implementations.h"
#include "tests/conformance/request_generator.h"
#include "tests/conformance/request_oracle.h"
#include "tests/support/local_engine.h"
#include "tests/support/status_matchers.h"

namespace rope::testing {
namespace {

using server::Request;

// One request with its path through one backend.
struct Answer {
  std::unique_ptr<Request> request;
  absl::Status status;
};

// A request, its exact answer, and the answer of each backend.
struct Case {
  v1::RotateRequest message;
  std::vector<ExactTensor> exact;
  std::vector<Answer> answers;  // one for each backend
};

// The request without its elements.
std::string InShort(v1::RotateRequest message) {
  for (v1::Tensor& tensor : *message.mutable_tensors()) {
    tensor.mutable_array()->clear_raw();
    tensor.mutable_array()->clear_numbers();
  }
  return message.ShortDebugString();
}

// Describes the error in a tensor of an answer; empty: none.
std::string Compare(const server::PooledBuffer& got, const ExactTensor& want) {
  const int64_t bytes = kernels::ElementBytes(want.dtype);
  if (got.size() != static_cast<int64_t>(want.values.size()) * bytes) {
    return absl::StrCat("got ", got.size(), " bytes for ", want.values.size(), " elements");
  }
  const auto* element = reinterpret_cast<const uint8_t*>(got.data());
  for (size_t i = 0; i < want.values.size(); ++i, element += bytes) {
    const double value = kernels::ReadElement(element, want.dtype);
    if (std::abs(value - want.values[i]) <= want.tolerances[i]) continue;
    return absl::StrFormat("element %d: got %.9g, want %.9g +- %.3g", i, value, want.values[i],
                           want.tolerances[i]);
  }
  return "";
}

class RequestPropertyTest : public ::testing::Test {
 protected:
  RequestPropertyTest() {
    // Small requests run on the calling thread; others gather into batches and are cut into slices.
    const server::Batcher::Options options = {
        .direct_bytes_max = 256, .slice_bytes_max = 512, .direct_slots = 1};
    const auto state = std::make_shared<LocalEngine::State>();
    for (const Implementation& implementation : Implementations()) {
      engines_.push_back(
          std::make_unique<LocalEngine>(implementation.make({.threads = 1}), options, state));
      names_.push_back(implementation.name);
    }
  }

  void Send(v1::RotateRequest message, size_t piece) {
    Case& one = *cases_.emplace_back(std::make_unique<Case>());
    one.exact = ExactAnswer(message);
    one.message = std::move(message);
    one.answers.resize(engines_.size());
    const ReceivedRequest received(one.message, piece);
    {
      proto::MutexLock lock(&mutex_);
      unanswered_ += static_cast<int64_t>(engines_.size());
    }
    for (size_t i = 0; i < engines_.size(); ++i) {
      Answer& answer = one.answers[i];
      const auto done = [this, &answer](std::unique_ptr<Request> request, absl::Status status) {
        answer = {std::move(request), std::move(status)};
        proto::MutexLock lock(&mutex_);
        if (--unanswered_ == 0) none_unanswered_.Signal();
      };
      const absl::Status submitted = engines_[i]->Submit(received, done);
      if (!submitted.ok()) done(nullptr, submitted);
    }
    if (cases_.size() == 64) CheckAll();
  }

  void CheckAll() {
    {
      proto::MutexLock lock(&mutex_);
      while (unanswered_ != 0) none_unanswered_.Wait(&mutex_);
    }
    for (const auto& one : cases_) {
      for (size_t i = 0; i < engines_.size() && !HasFailure(); ++i) {
        Check(*one, one->answers[i], names_[i]);
        ++answers_;
      }
    }
    cases_.clear();
  }

  static void Check(const Case& one, const Answer& answer, const std::string& backend) {
    ASSERT_THAT(answer.status, IsOk()) << backend << ": " << InShort(one.message);
    for (size_t i = 0; i < one.exact.size(); ++i) {
      ASSERT_EQ(Compare(answer.request->run.outputs[i], one.exact[i]), "")
          << backend << ", tensor " << i << " of " << InShort(one.message);
    }
  }

  std::vector<std::unique_ptr<LocalEngine>> engines_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<Case>> cases_;
  int64_t answers_ = 0;
  proto::Mutex mutex_;
  proto::CondVar none_unanswered_;
  int64_t unanswered_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST_F(RequestPropertyTest, EveryCombinationIsTheExactAnswerOnEveryBackend) {
  RequestGenerator generator(20240607);
  EveryChoice every;
  std::mt19937 random(1);
  int64_t combinations = 0;
  every.ForEach([&](const Choices& choices) {
    ++combinations;
    if (HasFailure()) return;
    Send(generator.Make(choices), random() % 4 == 0 ? 1 + random() % 300 : size_t{1} << 30);
  });
  CheckAll();
  std::printf(
      "measured: requests: %ld combinations of pairing, dtype, heads' place, positions and their "
      "width, cu_seqlens, operation and window, and %ld of layout, positions and operation, on %zu "
      "backends: %ld answers\n",
      combinations, every.layouts_visited(), engines_.size(), answers_);
  // [padded: 2 ways without an array + 7 of 3 widths; packed: the same, and with cu_seqlens 9 of 3]
  // x 4 places of heads x pairing x dtype x operation x window.
  EXPECT_EQ(combinations, (23 + 23 + 27) * 4 * 2 * 3 * 5 * 5);
  EXPECT_EQ(every.layouts_visited(), every.layouts());
}

// --- Far positions ---

constexpr int64_t kFar[] = {(1 << 24) - 1, 1 << 24, (1 << 24) + 1, 10000000, 1000000000};
constexpr int64_t kChannels = 128;

v1::RopeConfig DefaultConfig() {
  v1::RopeConfig config;
  config.set_rope_theta(10000);
  return config;
}

v1::RopeConfig ScaledConfig() {
  v1::RopeConfig config;
  config.set_rope_theta(500000);
  config.set_rope_type("llama3");
  config.set_factor(8);
  config.set_low_freq_factor(1);
  config.set_high_freq_factor(4);
  config.set_original_max_position_embeddings(8192);
  return config;
}

// One token at each of the far positions, in fp32.
v1::RotateRequest FarRequest(const v1::RopeConfig& config, uint32_t seed) {
  v1::RotateRequest request;
  *request.mutable_rope()->mutable_config() = config;
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  for (const int64_t position : kFar) {
    request.mutable_positions()->mutable_position_ids()->add_numbers(static_cast<double>(position));
  }
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(v1::ROLE_Q);
  tensor.set_layout("SHD");
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
  SetShape(*tensor.mutable_array(), {std::ssize(kFar), 32, kChannels});
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-3, 3);
  std::vector<float> values(static_cast<size_t>(std::ssize(kFar) * 32 * kChannels));
  for (float& value : values) value = uniform(random);
  tensor.mutable_array()->set_raw(RawBytes(values));
  return request;
}

// Largest error / tolerance.
double WorstRatio(const std::vector<float>& got, const ExactTensor& want) {
  double worst = got.size() == want.values.size() ? 0 : HUGE_VAL;
  for (size_t i = 0; i < got.size() && worst < HUGE_VAL; ++i) {
    const double ratio = std::abs(got[i] - want.values[i]) / want.tolerances[i];
    worst = std::isnan(ratio) ? HUGE_VAL : std::max(worst, ratio);
  }
  return worst;
}

TEST_F(RequestPropertyTest, FarPositionsAreWithinTheToleranceOfFp32) {
  for (size_t i = 0; i < engines_.size(); ++i) {
    std::string measured;
    for (const bool scaled : {false, true}) {
      v1::RotateRequest rotate = FarRequest(scaled ? ScaledConfig() : DefaultConfig(), 11);
      v1::RotateRequest reposition = rotate;
      reposition.set_operation(v1::OPERATION_REPOSITION);
      reposition.mutable_reposition()->mutable_from()->set_start(17);
      for (const v1::RotateRequest& request : {rotate, reposition}) {
        const auto got = engines_[i]->Rotate(request);
        ASSERT_THAT(got, IsOk()) << names_[i];
        const double ratio = WorstRatio(*got, ExactAnswer(request)[0]);
        EXPECT_LE(ratio, 1) << names_[i] << ": " << InShort(request);
        EXPECT_GT(ratio, 0) << "nothing was compared";
        absl::StrAppendFormat(&measured, "%s%.3f", measured.empty() ? "" : ", ", ratio);
      }
    }
    std::printf(
        "measured: %s at 2^24-1, 2^24, 2^24+1, 10^7 and 10^9: of the fp32 tolerance at most "
        "(default, moved there, llama3, moved there) %s\n",
        names_[i].c_str(), measured.c_str());
  }
}

}  // namespace
}  // namespace rope::testing
