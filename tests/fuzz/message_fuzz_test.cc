// However a request comes, its answer is that of the whole message in one piece: random requests,
// some of them with tensors in memory regions, also as calls of a prepared request, with other ids,
// positions, elements and places, with another length of an open axis; in fragments, run in slices
// whose results overwrite what was received; and as a ring brings them. Answers, errors, warnings
// and the contents of the regions must be the same byte for byte. Damaged bytes are read alike too.
//
// ROPE_FUZZ_ROUNDS=N and ROPE_FUZZ_SEED=N: another number of requests, other requests.
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "grpc/health/v1/health.pb.h"
#include "kernels/backends.h"
#include "rope/v1/rope_service.pb.h"
#include "server/request/plan.h"
#include "tests/conformance/request_generator.h"
#include "tests/fuzz/wire_messages.h"
#include "tests/support/prepared_call.h"
#include "tests/support/shared_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/wire_answer.h"

namespace rope::testing {
namespace {

constexpr uint64_t kRounds = 2000;
constexpr uint64_t kMessages = 120000;  // that are only decoded
constexpr uint64_t kVariations = 4;     // of each prepared request
constexpr uint64_t kSeed = 20260102;
constexpr char kModel[] = "of-any-head";  // of a file
constexpr uint64_t kSession = 7;
constexpr uint64_t kRegionBytes = 64 << 10;

struct Counts {
  int64_t answered = 0;     // calls that were rotated
  int64_t warned = 0;       // of those: with a warning
  int64_t open = 0;         // of those: with another length of the open axis
  int64_t regions = 0;      // of those: with a tensor in a region
  int64_t refused = 0;      // calls that were refused, as the whole request was
  int64_t overwritten = 0;  // results that took the place of what was received
  int64_t kept = 0;         // results that did not
};

// Results of at least `overwrite_bytes_min` bytes overwrite what was received.
std::unique_ptr<LocalEngine> MakeEngine(const std::string& backend, int64_t slice_bytes,
                                        int64_t overwrite_bytes_min) {
  auto state = std::make_shared<LocalEngine::State>();
  const std::vector<server::ModelRegistry::ModelFile> files = {
      {kModel, R"({"model_type": "llama", "max_position_embeddings": 300})"}};
  state->registry = server::ModelRegistry::Create(files).value();
  state->overwrite_bytes_min = overwrite_bytes_min;
  server::Batcher::Options options;
  options.direct_bytes_max = options.slice_bytes_max = slice_bytes;
  return std::make_unique<LocalEngine>(kernels::CreateBackend(backend, {}).value(), options,
                                       std::move(state));
}

class MessageFuzzTest : public ::testing::TestWithParam<const char*> {
 protected:
  MessageFuzzTest() {
    server::Regions& regions = whole_->clients().Of(kSession).regions();
    ids_ = {regions.RegisterMemfd(memories_[0].Dup(), kRegionBytes).value(),
            regions.RegisterMemfd(memories_[1].Dup(), kRegionBytes).value()};
    RandomElements(contents_);
  }

  uint64_t Below(uint64_t n) { return writer_.Below(n); }
  bool OneIn(uint64_t n) { return writer_.OneIn(n); }
  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return values.begin()[Below(values.size())];
  }

  // What the generator leaves out. Not all of it is legal everywhere.
  void Decorate(v1::RotateRequest& request) {
    if (OneIn(2)) request.set_request_id(std::string(Below(20), 'x'));
    if (OneIn(20)) request.set_request_id("\u00e9\u65e5");
    v1::RopeSpec& rope = *request.mutable_rope();
    v1::RopeConfig& config = *rope.mutable_config();
    if (OneIn(3)) config.set_max_position_embeddings(OneOf<int64_t>({8, 300, 100000}));
    if (OneIn(16)) config.mutable_xpos()->set_scale_base(512);
    if (OneIn(8)) rope.set_precision(v1::PRECISION_HF);
    if (OneIn(16)) request.set_operation(v1::OPERATION_ADD_SINUSOIDAL);
    if (OneIn(4)) {
      request.mutable_output()->set_dtype(OneOf({v1::DTYPE_FP32, v1::DTYPE_FP16, v1::DTYPE_BF16,
                                                 v1::DTYPE_FP8_E4M3, v1::DTYPE_FP8_E5M2}));
    }
    for (v1::Tensor& tensor : *request.mutable_tensors()) DecorateTensor(config, tensor);
    if (OneIn(6)) rope.set_model(kModel);  // in place of the config
  }

  void DecorateTensor(v1::RopeConfig& config, v1::Tensor& tensor) {
    if (OneIn(8)) tensor.set_scale(0.5);
    if (OneIn(16)) {
      const v1::Array& array = tensor.array();
      const int64_t channels = array.shape(array.shape_size() - 1);
      tensor.mutable_norm()->set_eps(1e-6);
      v1::Array& weight = *tensor.mutable_norm()->mutable_weight();
      weight.set_dtype(v1::DTYPE_FP32);
      weight.add_shape(channels);
      weight.set_raw(RawBytes(std::vector<float>(static_cast<size_t>(channels), 0.5F)));
    }
    if (OneIn(16)) {
      tensor.set_llama4_scaling_beta(0.1);
      config.set_original_max_position_embeddings(2);
    }
    if (OneIn(16)) tensor.add_fp8_scales(2);
  }

  v1::RegionSpan RandomSpan() {
    v1::RegionSpan span;
    span.set_region_id(OneIn(32) ? Below(1000) : ids_[Below(ids_.size())]);
    const uint64_t offset = Below(kRegionBytes);
    span.set_offset(OneIn(32) ? kRegionBytes + offset : offset / 2 / 64 * 64);
    return span;
  }

  // Moves tensors and results to regions. Not every place is legal.
  void PlaceInRegions(v1::RotateRequest& request) {
    for (v1::Tensor& tensor : *request.mutable_tensors()) {
      v1::Array& array = *tensor.mutable_array();
      if (array.numbers_size() > 0 || OneIn(4)) continue;
      array.clear_raw();
      *array.mutable_region() = RandomSpan();
    }
    if (OneIn(4)) return request.mutable_output()->set_in_place(true);
    if (OneIn(4)) return;
    for (int i = 0; i < request.tensors_size(); ++i) {
      const v1::Array& array = request.tensors(i).array();
      *request.mutable_output()->add_regions() =
          array.has_region() && OneIn(4) ? array.region() : RandomSpan();
    }
  }

  void VarySpan(v1::RegionSpan& span) {
    if (OneIn(2)) span = RandomSpan();
  }

  void RandomBytes(std::string& bytes) {
    for (char& byte : bytes) byte = static_cast<char>(Below(256));
  }
  // No NaN, which may have any payload in a result (backend.h): a bit of every exponent is 0, or of
  // the fraction that makes e4m3 a NaN.
  void RandomElements(std::string& bytes) {
    RandomBytes(bytes);
    for (char& byte : bytes) byte = static_cast<char>(byte & ~4);
  }

  int64_t OtherStart(int64_t start) {
    constexpr int64_t kMost = server::limits::kPositionMax;
    if (OneIn(4)) {
      return OneOf<int64_t>({-1, std::numeric_limits<int64_t>::min(), 0, 7, 8, 127, 128, 299, 300,
                             kMost - 1, kMost, kMost + 1, std::numeric_limits<int64_t>::max()});
    }
    int64_t end = 128;  // of the varints that are as long
    while (end <= start) end *= 128;
    const int64_t begin = end == 128 ? 0 : end / 128;
    return begin + static_cast<int64_t>(Below(static_cast<uint64_t>(end - begin)));
  }

  void VaryIntegers(v1::Array& array) {
    std::string& raw = *array.mutable_raw();
    if (raw.empty() || OneIn(4)) return;
    if (OneIn(8)) return RandomBytes(raw);
    const size_t width = array.dtype() == v1::DTYPE_INT64 ? 8 : 4;
    for (size_t i = 0; i + width <= raw.size(); i += width) {
      if (OneIn(2)) raw[i] = static_cast<char>(Below(256));  // the lowest byte
    }
  }

  // The same request with other values.
  v1::RotateRequest Varied(const v1::RotateRequest& base) {
    v1::RotateRequest request = base;
    if (OneIn(2)) {
      std::string& id = *request.mutable_request_id();
      for (char& letter : id) letter = static_cast<char>('a' + Below(26));
      if (id.size() > 1 && OneIn(8)) id.replace(0, 2, OneIn(2) ? "\u00e9" : "\xc3(");
    }
    v1::Positions& positions = *request.mutable_positions();
    if (positions.has_start()) positions.set_start(OtherStart(positions.start()));
    if (positions.has_starts()) VaryIntegers(*positions.mutable_starts());
    if (positions.has_position_ids()) VaryIntegers(*positions.mutable_position_ids());
    if (positions.has_cu_seqlens() && OneIn(2)) VaryIntegers(*positions.mutable_cu_seqlens());
    for (v1::Tensor& tensor : *request.mutable_tensors()) {
      v1::Array& array = *tensor.mutable_array();
      if (array.has_region()) {
        VarySpan(*array.mutable_region());
      } else if (array.numbers_size() == 0) {
        RandomElements(*array.mutable_raw());
      }
    }
    for (v1::RegionSpan& span : *request.mutable_output()->mutable_regions()) VarySpan(span);
    if (!base.has_output()) request.clear_output();
    return request;
  }

  void Damage(std::string& bytes) {
    if (bytes.empty() || OneIn(8)) return writer_.Damage(bytes);
    for (uint64_t n = 1 + Below(3); n > 0; --n) {
      char& byte = bytes[Below(bytes.size())];
      byte = OneIn(2) ? static_cast<char>(byte ^ 1 << Below(8)) : static_cast<char>(Below(256));
    }
  }

  void ExpectSame(const WireAnswer& got, const WireAnswer& want, const std::string& what) {
    EXPECT_EQ(got.status, want.status) << what;
    EXPECT_TRUE(got.bytes == want.bytes) << what << "\n  got " << got.Parsed().ShortDebugString()
                                         << "\n want " << want.Parsed().ShortDebugString();
  }

  // The answer to the message in one piece, which is compared with the other ways of its bytes.
  WireAnswer Send(const std::string& bytes, const std::string& what) {
    const std::string_view whole = bytes;
    SetMemory();
    const WireAnswer want = Answer(*whole_, {&whole, 1}, kSession);
    const std::vector<std::string> memory = Memory();
    SetMemory();
    ExpectSame(AnswerOfRing(*whole_, bytes, kSession), want, what);
    SetMemory();
    ExpectSame(Answer(*whole_, writer_.Cut(bytes), kSession), want, what);
    EXPECT_TRUE(Memory() == memory) << what;
    return want;
  }

  // The answer to a request that is sent whole, also where it runs in slices.
  WireAnswer SendWhole(const v1::RotateRequest& request) {
    const std::string bytes = request.SerializeAsString();
    const WireAnswer want = Send(bytes, request.ShortDebugString());
    EXPECT_EQ(want.overwritten, 0);
    if (in_regions_) return want;
    const WireAnswer got = Answer(*sliced_, writer_.Cut(bytes), kSession);
    ExpectSame(got, want, request.ShortDebugString());
    counts_.overwritten += got.overwritten;
    if (got.status.ok()) counts_.kept += request.tensors_size() - got.overwritten;
    return want;
  }

  void Compare(const v1::RotateRequest& whole, const std::string& id, bool is_open) {
    const WireAnswer want = SendWhole(whole);
    const std::vector<std::string> memory = Memory();
    const v1::RotateRequest call = CallOf(whole, id, is_open);
    const WireAnswer got =
        Send(OneIn(2) ? call.SerializeAsString() : writer_.Write(call, /*flawed=*/false),
             whole.ShortDebugString());
    ExpectSame(got, want, whole.ShortDebugString());
    EXPECT_TRUE(Memory() == memory) << whole.ShortDebugString();
    ++(got.status.ok() ? counts_.answered : counts_.refused);
    if (!got.status.ok()) return;
    counts_.warned += got.Parsed().warnings_size() > 0 ? 1 : 0;
    counts_.regions += in_regions_ ? 1 : 0;
    counts_.open += is_open ? 1 : 0;
  }

  // The letter of an axis that may be left open; empty: there is none.
  std::string OpenAxisOf(const v1::RotateRequest& request) {
    const std::string& layout = request.tensors(0).layout();
    const size_t axis = layout.find_first_of(OneIn(2) ? "BT" : "SBT");
    const bool has_strides = request.tensors(0).array().strides_size() > 0;
    return axis == std::string::npos || has_strides ? "" : layout.substr(axis, 1);
  }

  // Prepares the request, with an axis that is longer than the request's if `open_axis` names one.
  absl::StatusOr<std::string> PrepareFor(const v1::RotateRequest& whole,
                                         const std::string& open_axis) {
    v1::PrepareRequest request = PrepareOf(whole);
    request.set_open_axis(open_axis);
    const auto more = static_cast<int64_t>(Below(4));
    for (v1::Tensor& tensor : *request.mutable_rotate()->mutable_tensors()) {
      const size_t axis = open_axis.empty() ? std::string::npos : tensor.layout().find(open_axis);
      if (axis == std::string::npos) continue;
      int64_t& length = tensor.mutable_array()->mutable_shape()->at(static_cast<int>(axis));
      length += more;
    }
    return whole_->Prepare(request, kSession);
  }

  // A request, whole and prepared, then others like it.
  void Round(const v1::RotateRequest& request) {
    if (request.has_rows()) return void(SendWhole(request));  // values, which Prepare refuses
    const std::string open_axis = OneIn(4) ? OpenAxisOf(request) : "";
    const auto id = PrepareFor(request, open_axis);
    if (!id.ok()) {
      EXPECT_FALSE(SendWhole(request).status.ok()) << id.status().ToString();
      return;
    }
    Compare(request, *id, !open_axis.empty());
    for (uint64_t i = 0; i < kVariations && !HasFailure(); ++i) {
      const v1::RotateRequest other = Varied(request);
      Compare(other, *id, !open_axis.empty());
      if (!OneIn(3)) continue;
      std::string bytes = CallOf(other, *id, !open_axis.empty()).SerializeAsString();
      Damage(bytes);
      Send(bytes, absl::BytesToHexString(bytes));
    }
  }

  // Every request finds the same in its regions.
  void SetMemory() {
    if (!in_regions_) return;
    for (const SharedMemory& memory : memories_) {
      std::memcpy(memory.data(), contents_.data(), kRegionBytes);
    }
  }
  std::vector<std::string> Memory() const {
    std::vector<std::string> contents;
    if (!in_regions_) return contents;
    for (const SharedMemory& memory : memories_) contents.emplace_back(memory.data(), kRegionBytes);
    return contents;
  }

  const google::protobuf::LogSilencer silencer_;  // of broken UTF-8
  const std::array<SharedMemory, 2> memories_ = {SharedMemory::Memfd(kRegionBytes),
                                                 SharedMemory::Memfd(kRegionBytes)};
  std::array<uint64_t, 2> ids_ = {};
  std::string contents_ = std::string(kRegionBytes, '\0');
  bool in_regions_ = false;  // the round's request
  const std::unique_ptr<LocalEngine> whole_ =
      MakeEngine(GetParam(), int64_t{1} << 20, std::numeric_limits<int64_t>::max());
  const std::unique_ptr<LocalEngine> sliced_ = MakeEngine(GetParam(), 256, 1);
  WireWriter writer_{FuzzSeed(kSeed)};
  Counts counts_;
};

TEST_P(MessageFuzzTest, TheAnswerIsThatOfTheWholeMessage) {
  RequestGenerator generator(static_cast<uint32_t>(Below(1000000)));
  std::vector<Choices> choices;
  EveryChoice().ForEach([&](const Choices& each) { choices.push_back(each); });
  const uint64_t rounds = FuzzRounds(kRounds);
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    v1::RotateRequest request = generator.Make(choices[Below(choices.size())]);
    if (OneIn(2)) Decorate(request);
    in_regions_ = OneIn(4);  // places are often illegal
    if (in_regions_) PlaceInRegions(request);
    Round(request);
  }
  std::printf(
      "measured: prepared calls: %lld answered, %lld of them with a warning, %lld with regions, "
      "%lld with an open axis; %lld refused; %lld results took the place of what came, %lld not\n",
      static_cast<long long>(counts_.answered), static_cast<long long>(counts_.warned),
      static_cast<long long>(counts_.regions), static_cast<long long>(counts_.open),
      static_cast<long long>(counts_.refused), static_cast<long long>(counts_.overwritten),
      static_cast<long long>(counts_.kept));
  EXPECT_GT(counts_.answered, static_cast<int64_t>(rounds / 4));
  for (const int64_t count : {counts_.regions, counts_.warned, counts_.open, counts_.refused,
                              counts_.overwritten, counts_.kept}) {
    EXPECT_GT(count, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, MessageFuzzTest, ::testing::Values("reference", "cpu"),
                         [](const auto& tested) { return std::string(tested.param); });

// Each message decodes to one that the generated parser also accepts, or fails with a status that
// names the error.
TEST(MessageDecodeFuzzTest, RequestsOfEveryMethodAreTakenOrRefusedByName) {
  const google::protobuf::LogSilencer silencer;
  WireWriter writer(FuzzSeed(kSeed));
  std::vector<const google::protobuf::Message*> types;
  for (const google::protobuf::ServiceDescriptor* service :
       {v1::GetServerInfoRequest::descriptor()->file()->service(0),
        grpc::health::v1::HealthCheckRequest::descriptor()->file()->service(0)}) {
    for (int i = 0; i < service->method_count(); ++i) {
      types.push_back(google::protobuf::MessageFactory::generated_factory()->GetPrototype(
          service->method(i)->input_type()));
    }
  }
  ASSERT_GE(types.size(), 12u);
  int64_t taken = 0;
  const uint64_t rounds = FuzzRounds(kMessages);
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    const google::protobuf::Message& type = *types[round % types.size()];
    const bool flawed = writer.OneIn(4);
    std::string bytes = writer.Write(*writer.RandomMessage(type), flawed);
    if (!flawed && writer.OneIn(2)) writer.Damage(bytes);
    if (writer.OneIn(32)) bytes = writer.RandomBytes(writer.Below(200));
    SCOPED_TRACE(type.GetTypeName() + " " + absl::BytesToHexString(bytes));
    const std::unique_ptr<google::protobuf::Message> decoded(type.New());
    grpc::ByteBuffer buffer = BufferOf(writer.Cut(bytes));
    server::ReceivedPayloads payloads;
    const absl::Status status = server::DecodeMessage(buffer, *decoded, payloads);
    taken += status.ok() ? 1 : 0;
    EXPECT_TRUE(!status.ok() || decoded->ParseFromString(bytes));
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ||
                absl::IsResourceExhausted(status));
    if (!status.ok()) {
      EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(": got "), HasSubstr(", want ")));
    }
  }
  EXPECT_GT(taken, 0);
  EXPECT_LT(taken, static_cast<int64_t>(rounds));
}

}  // namespace
}  // namespace rope::testing
