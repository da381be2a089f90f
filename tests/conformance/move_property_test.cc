// Moves by a table in pages, from Protobuf to the bytes of a pool, through the server's engine over
// every backend, compared bit for bit with the same moves of packed tokens; and hostile ones.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/conformance/implementations.h"
#include "tests/conformance/move_generator.h"
#include "tests/support/local_engine.h"
#include "tests/support/received_request.h"
#include "tests/support/shared_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/wire_answer.h"

namespace rope::testing {
namespace {

// A LocalEngine with a client that shares memory with it.
class RegionEngine {
 public:
  RegionEngine(uint64_t bytes, std::unique_ptr<kernels::Backend> backend,
               const server::Batcher::Options& options = {})
      : memory_(SharedMemory::Memfd(bytes)), engine_(std::move(backend), options) {
    id_ = engine_.clients().Of(kSession).regions().RegisterMemfd(memory_.Dup(), bytes).value();
  }

  uint64_t id() const { return id_; }
  WireAnswer Send(const v1::RotateRequest& request) {
    const std::string bytes = request.SerializeAsString();
    return Answer(engine_, std::vector<std::string_view>{bytes}, kSession);
  }
  void Write(const std::string& contents) {
    std::memcpy(memory_.data(), contents.data(), contents.size());
  }
  // Whether the region begins with `contents`.
  bool Has(const std::string& contents) const {
    return std::string_view(memory_.data(), contents.size()) == contents;
  }

 private:
  static constexpr uint64_t kSession = 7;
  const SharedMemory memory_;
  LocalEngine engine_;
  uint64_t id_ = 0;
};

// `request` in the region of the engine, which has the contents of `memory` before.
WireAnswer SendInPages(RegionEngine& engine, v1::RotateRequest request, const std::string& memory) {
  SetRegion(engine.id(), request);
  engine.Write(memory);
  return engine.Send(request);
}

// The request without its elements.
std::string InShort(v1::RotateRequest request) {
  request.clear_rows();
  return request.ShortDebugString();
}

TEST(MovePropertyTest, PagesAndSlotsMoveAsPackedTokensDoOnEveryBackend) {
  constexpr int kCases = 600;
  // Small requests run on the calling thread; others are cut into slices. Some begin within a layer
  // and have several.
  const server::Batcher::Options options = {
      .direct_bytes_max = 256, .slice_bytes_max = 1536, .direct_slots = 1};
  int64_t answers = 0;
  for (const Implementation& implementation : Implementations()) {
    if (implementation.backend_name.rfind("cuda", 0) == 0) continue;  // not built
    RegionEngine engine(kMoveRegionBytes, implementation.make({.threads = 1}), options);
    MoveGenerator generator(20261129);
    for (int i = 0; i < kCases; ++i) {
      const MoveCase made = generator.Make();
      const WireAnswer packed = engine.Send(made.in_message);
      ASSERT_THAT(packed.status, IsOk()) << InShort(made.in_message);
      std::vector<std::string> results;
      const v1::RotateResponse response = packed.Parsed();
      for (const v1::Tensor& tensor : response.tensors()) results.push_back(tensor.array().raw());
      const WireAnswer answer = SendInPages(engine, made.in_pages, made.memory);
      ASSERT_THAT(answer.status, IsOk()) << implementation.name << ": " << InShort(made.in_pages);
      ASSERT_TRUE(engine.Has(made.Moved(results)))
          << implementation.name << ", case " << i << ": " << InShort(made.in_pages);
      ++answers;
    }
  }
  std::printf("measured: moves in pages and slots: %ld answers, bit-equal to packed ones\n",
              answers);
  EXPECT_GT(answers, kCases);
}

// --- Hostile moves ---

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

void SetNumbers(const std::vector<double>& numbers, v1::Array& array) {
  array.Clear();
  array.mutable_numbers()->Assign(numbers.begin(), numbers.end());
}

// Two layers in turns, 6 tokens in pages of 4, 2 heads of 4 channels, a table of 8 rows.
v1::RotateRequest LegalMove() {
  v1::RotateRequest request;
  request.set_operation(v1::OPERATION_REPOSITION);
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  v1::Array& table = *request.mutable_rows()->mutable_cos_sin();
  table.set_dtype(v1::DTYPE_FP32);
  SetShape(table, {8, 4});
  std::vector<float> rows(32, 0.5F);
  rows[3 * 4] = 0.25F;  // row 3 turns a pair
  table.set_raw(RawBytes(rows));
  SetNumbers({3}, *request.mutable_reposition()->mutable_by());
  request.mutable_output()->set_in_place(true);
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(v1::ROLE_K);
  tensor.set_layout("LTHD");
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
  SetShape(*tensor.mutable_array(), {2, 6, 2, 4});
  v1::PagedTokens& paged = *tensor.mutable_paged_tokens();
  paged.set_block_size(4);
  paged.set_head_stride(4);
  paged.set_token_stride(8);
  paged.set_page_stride(64);
  paged.set_layer_stride(32);
  paged.set_pool_elements(10 * 64);
  SetNumbers({7, 2}, *paged.mutable_pages());
  return request;
}

using Edit = std::function<void(v1::RotateRequest&, v1::PagedTokens&)>;
struct Hostile {
  const char* what;
  Edit edit;
};

void SetSlots(const std::vector<double>& slots, v1::PagedTokens& paged) {
  paged.clear_pages();
  SetNumbers(slots, *paged.mutable_slots());
}

std::vector<Hostile> IdsAndSlots() {
  return {
      {"a negative page",
       [](auto&, auto& p) {
         SetNumbers({7, -1}, *p.mutable_pages());
       }},
      {"a page past the pool",
       [](auto&, auto& p) {
         SetNumbers({7, 10}, *p.mutable_pages());
       }},
      {"a page past everything",
       [](auto&, auto& p) {
         SetNumbers({7, 0x1p62}, *p.mutable_pages());
       }},
      {"a page twice",
       [](auto&, auto& p) {
         SetNumbers({7, 7}, *p.mutable_pages());
       }},
      {"a page too few", [](auto&, auto& p) { SetNumbers({7}, *p.mutable_pages()); }},
      {"a page too many",
       [](auto&, auto& p) {
         SetNumbers({7, 2, 3}, *p.mutable_pages());
       }},
      {"neither pages nor slots", [](auto&, auto& p) { p.clear_pages(); }},
      {"pages and slots",
       [](auto&, auto& p) {
         SetNumbers({0, 1, 2, 3, 4, 5}, *p.mutable_slots());
       }},
      {"a slot below -1",
       [](auto&, auto& p) {
         SetSlots({0, 1, 2, -2, 4, 5}, p);
       }},
      {"a slot past the pool",
       [](auto&, auto& p) {
         SetSlots({0, 1, 2, 40, 4, 5}, p);
       }},
      {"a slot past everything",
       [](auto&, auto& p) {
         SetSlots({0, 1, 2, 0x1p62, 4, 5}, p);
       }},
      {"a slot twice",
       [](auto&, auto& p) {
         SetSlots({0, 1, 2, 0, 4, 5}, p);
       }},
      {"a target twice",
       [](auto&, auto& p) {
         SetNumbers({0, 1, 0, 3, 4, 5}, *p.mutable_target_slots());
       }},
      {"a target past the pool",
       [](auto&, auto& p) {
         SetNumbers({0, 1, 40, 3, 4, 5}, *p.mutable_target_slots());
       }},
      {"a target that another token reads",
       [](auto&, auto& p) {
         SetNumbers({29, 1, 0, 3, 4, 5}, *p.mutable_target_slots());
       }},
      {"targets of another shape",
       [](auto&, auto& p) {
         SetNumbers({0, 1}, *p.mutable_target_slots());
       }},
  };
}

std::vector<Hostile> SizesAndStrides() {
  return {
      {"no block", [](auto&, auto& p) { p.set_block_size(0); }},
      {"a negative block", [](auto&, auto& p) { p.set_block_size(-4); }},
      {"a huge block", [](auto&, auto& p) { p.set_block_size(kHuge); }},
      {"no page stride", [](auto&, auto& p) { p.set_page_stride(0); }},
      {"a negative token stride", [](auto&, auto& p) { p.set_token_stride(-8); }},
      {"a huge page stride", [](auto&, auto& p) { p.set_page_stride(kHuge); }},
      {"a huge head stride", [](auto&, auto& p) { p.set_head_stride(kHuge / 2); }},
      {"tokens that overlap", [](auto&, auto& p) { p.set_token_stride(7); }},
      {"heads that overlap", [](auto&, auto& p) { p.set_head_stride(3); }},
      {"layers that overlap", [](auto&, auto& p) { p.set_layer_stride(31); }},
      {"no layer stride", [](auto&, auto& p) { p.set_layer_stride(0); }},
      {"a pool that is too small", [](auto&, auto& p) { p.set_pool_elements(7 * 64); }},
      {"a pool past the region",
       [](auto& r, auto&) {
         r.mutable_tensors(0)->mutable_array()->mutable_region()->set_offset(kMoveRegionBytes - 64);
       }},
      {"elements in the message",
       [](auto& r, auto&) {
         r.mutable_tensors(0)->mutable_array()->set_raw(std::string(2 * 6 * 2 * 4 * 4, '\0'));
       }},
      {"strides beside pages",
       [](auto& r, auto&) { r.mutable_tensors(0)->mutable_array()->mutable_strides()->Add(1); }},
      {"neither in place nor a pool for the results", [](auto& r, auto&) { r.clear_output(); }},
  };
}

std::vector<Hostile> TablesAndDistances() {
  const auto set_row = [](v1::RotateRequest& request, float value) {
    std::vector<float> table(32, 0.5F);
    table[3 * 4] = table[3 * 4 + 2] = value;  // of row 3
    request.mutable_rows()->mutable_cos_sin()->set_raw(RawBytes(table));
  };
  return {
      {"a move past the table",
       [](auto& r, auto&) { SetNumbers({8}, *r.mutable_reposition()->mutable_by()); }},
      {"a move back past the table",
       [](auto& r, auto&) { SetNumbers({-8}, *r.mutable_reposition()->mutable_by()); }},
      {"moves of too few pages",
       [](auto& r, auto&) {
         SetNumbers({1, 2, 3}, *r.mutable_reposition()->mutable_by());
       }},
      {"a position past the table",
       [](auto& r, auto&) {
         r.mutable_reposition()->clear_by();
         r.mutable_reposition()->mutable_from()->set_start(0);
         r.mutable_positions()->set_start(3);
       }},
      {"a negative position",
       [](auto& r, auto&) {
         r.mutable_reposition()->clear_by();
         r.mutable_reposition()->mutable_from()->set_start(-1);
         r.mutable_positions()->set_start(0);
       }},
      {"a distance and positions", [](auto& r, auto&) { r.mutable_positions()->set_start(0); }},
      {"a row that is not finite",
       [=](auto& r, auto&) { set_row(r, std::numeric_limits<float>::quiet_NaN()); }},
      {"a row of zeros", [=](auto& r, auto&) { set_row(r, 0); }},
      {"a table wider than K",
       [](auto& r, auto&) {
         SetShape(*r.mutable_rows()->mutable_cos_sin(), {2, 16});
       }},
      {"a table with an odd width",
       [](auto& r, auto&) {
         SetShape(*r.mutable_rows()->mutable_cos_sin(), {32, 1});
       }},
      {"half a table",
       [](auto& r, auto&) { r.mutable_rows()->mutable_cos_sin()->set_raw("1234"); }},
      {"no pairing", [](auto& r, auto&) { r.clear_rope(); }},
  };
}

TEST(MovePropertyTest, HostileMovesAreRefusedBeforeAByteChanges) {
  RegionEngine engine(kMoveRegionBytes, kernels::CreateBackend("reference", {}).value());
  const std::string memory(16 << 10, '\x3e');
  ASSERT_THAT(SendInPages(engine, LegalMove(), memory).status, IsOk());
  EXPECT_FALSE(engine.Has(memory));
  for (const auto& hostile : {IdsAndSlots(), SizesAndStrides(), TablesAndDistances()}) {
    for (const auto& [what, edit] : hostile) {
      v1::RotateRequest request = LegalMove();
      edit(request, *request.mutable_tensors(0)->mutable_paged_tokens());
      const WireAnswer answer = SendInPages(engine, request, memory);
      EXPECT_TRUE(absl::IsInvalidArgument(answer.status) || absl::IsOutOfRange(answer.status))
          << what << ": " << answer.status;
      EXPECT_FALSE(answer.Parsed().error().may_have_executed()) << what;
      EXPECT_TRUE(engine.Has(memory)) << what;
    }
  }
}

}  // namespace
}  // namespace rope::testing
