#include "server/request/prepared_rotations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/prepared_call.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::IsOk;
using ::rope::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kNotFound = absl::StatusCode::kNotFound;

class PreparedRotationsTest : public ::testing::Test {
 protected:
  static std::shared_ptr<const PreparedRotation> Entry(const std::string& id, int64_t bytes = 1) {
    auto entry = std::make_shared<PreparedRotation>();
    entry->id = id;
    entry->bytes = bytes;
    return entry;
  }

  static void Register(const std::string& name, double theta, ModelRegistry& registry) {
    v1::RopeSpec spec;
    spec.mutable_config()->set_head_dim(8);
    spec.mutable_config()->set_rope_theta(theta);
    spec.set_pairing(v1::PAIRING_HALF);
    EXPECT_THAT(registry.Register(name, spec, "uid:1"), IsOk());
  }

  static v1::PrepareRequest OfModel(const std::string& name) {
    v1::PrepareRequest request;
    request.mutable_rotate()->mutable_rope()->set_model(name);
    v1::Tensor& tensor = *request.mutable_rotate()->add_tensors();
    tensor.set_role(v1::ROLE_Q);
    tensor.set_layout("SD");
    tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
    for (const int64_t length : {1, 8}) tensor.mutable_array()->add_shape(length);
    return request;
  }

  const std::unique_ptr<ModelRegistry> registry_ = ModelRegistry::Create({}).value();
};

TEST_F(PreparedRotationsTest, EntryIsFoundByItsId) {
  PreparedRotations prepared(*registry_, {});
  const auto entry = Entry("a");
  EXPECT_THAT(prepared.Keep(entry, 1), IsOk());
  EXPECT_EQ(prepared.Find("a").value(), entry);
  EXPECT_THAT(prepared.Find("b"),
              StatusIs(kNotFound, HasSubstr("prepared_id: got \"b\", want one from Prepare")));
  EXPECT_EQ(proto::PartsOf(prepared.Find("b").status()).reason, Reason::kPreparedNotFound);
}

TEST_F(PreparedRotationsTest, LeastRecentlyUsedGoesFirst) {
  PreparedRotations prepared(*registry_, {.entries_max = 3, .bytes_max = 100});
  for (const uint64_t session : {1, 2, 3})
    EXPECT_THAT(prepared.Keep(Entry(absl::StrCat(session)), session), IsOk());
  EXPECT_THAT(prepared.Find("1"), IsOk());
  EXPECT_THAT(prepared.Keep(Entry("4"), 4), IsOk());
  EXPECT_THAT(prepared.Find("1"), IsOk());
  EXPECT_THAT(prepared.Find("2"), StatusIs(kNotFound, HasSubstr("prepared_id")));
  EXPECT_EQ(prepared.size().entries, 3);
}

TEST_F(PreparedRotationsTest, BytesAreBoundedToo) {
  PreparedRotations prepared(*registry_, {.entries_max = 100, .bytes_max = 20});
  for (const uint64_t session : {1, 2, 3})
    EXPECT_THAT(prepared.Keep(Entry(absl::StrCat(session), 8), session), IsOk());
  EXPECT_THAT(prepared.Find("1"), StatusIs(kNotFound, HasSubstr("prepared_id")));
  EXPECT_EQ(prepared.size().bytes, 16);
  EXPECT_THAT(prepared.Keep(Entry("large", 11), 4),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("rotate: got 11 bytes of memory to keep it prepared, want at most "
                                 "10, or the whole request in each call")));
  EXPECT_THAT(prepared.Find("large"), StatusIs(kNotFound, HasSubstr("prepared_id")));
  EXPECT_EQ(prepared.size().entries, 2);
}

TEST_F(PreparedRotationsTest, OneSessionPushesOutItsOwnEntriesAlone) {
  PreparedRotations prepared(*registry_, {.entries_max = 4, .bytes_max = 100});
  EXPECT_THAT(prepared.Keep(Entry("theirs"), 1), IsOk());
  for (int i = 0; i < 10; ++i) EXPECT_THAT(prepared.Keep(Entry(absl::StrCat(i)), 2), IsOk());
  EXPECT_THAT(prepared.Find("theirs"), IsOk());
  EXPECT_THAT(prepared.Find("7"), StatusIs(kNotFound, HasSubstr("prepared_id")));
  EXPECT_THAT(prepared.Find("8"), IsOk());
  EXPECT_THAT(prepared.Find("9"), IsOk());
}

TEST_F(PreparedRotationsTest, SameIdIsKeptOnce) {
  PreparedRotations prepared(*registry_, {});
  for (int i = 1; i <= 5; ++i) EXPECT_THAT(prepared.Keep(Entry("a", i), 1), IsOk());
  EXPECT_EQ(prepared.size().entries, 1);
  EXPECT_EQ(prepared.size().bytes, 5);
}

TEST_F(PreparedRotationsTest, EntryOfAModelGoesWithAModel) {
  PreparedRotations prepared(*registry_, {});
  Register("m", 7, *registry_);
  const auto of_m = testing::PrepareReceived(OfModel("m"), *registry_);
  ASSERT_THAT(of_m, IsOk());
  EXPECT_THAT(prepared.Keep(*of_m, 1), IsOk());
  EXPECT_THAT(prepared.Keep(Entry("of no model"), 1), IsOk());
  EXPECT_THAT(prepared.Find((*of_m)->id), IsOk());
  ASSERT_THAT(registry_->Unregister("m", "uid:1"), IsOk());
  Register("m", 9, *registry_);
  EXPECT_THAT(prepared.Find((*of_m)->id), StatusIs(kNotFound, HasSubstr("prepared_id")));
  EXPECT_THAT(prepared.Find("of no model"), IsOk());
  const auto again = testing::PrepareReceived(OfModel("m"), *registry_);
  ASSERT_THAT(again, IsOk());
  EXPECT_NE((*again)->id, (*of_m)->id) << "the model means another config";
}

TEST_F(PreparedRotationsTest, ThreadsFindWhatOthersKeep) {
  PreparedRotations prepared(*registry_, {.entries_max = 8, .bytes_max = 100});
  std::vector<std::thread> threads;
  for (uint64_t session = 0; session < 4; ++session) {
    threads.emplace_back([&prepared, session] {
      for (int i = 0; i < 2000; ++i) {
        const std::string id = absl::StrCat(i % 12);
        if (const auto found = prepared.Find(id); found.ok()) {
          EXPECT_EQ((*found)->id, id);
        } else {
          EXPECT_THAT(prepared.Keep(Entry(id), session), IsOk());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(prepared.size().entries, 8);
}

}  // namespace
}  // namespace rope::server
