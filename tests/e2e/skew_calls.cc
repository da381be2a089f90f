#include "tests/e2e/skew_calls.h"

#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace rope::testing {
namespace {

using client::ArrayView;
using client::Client;
using client::DType;
using client::RopeConfig;
using client::RopeSpec;
using client::RotateRequest;
using client::TensorView;

// Elements of every tensor: bytes that are finite numbers in each dtype.
std::vector<char> Elements() {
  std::vector<char> bytes(4096);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(i % 4 == 3 ? 0x3f : i % 4 == 1 ? 0x3e : i % 64);
  }
  return bytes;
}
const std::vector<char> kElements = Elements();

std::string Shown(double number) {
  return absl::StrFormat("%.17g", number);
}
std::string Shown(int64_t number) {
  return absl::StrCat(number);
}
std::string Shown(const std::string& text) {
  return text;
}
template <typename T>
std::string Shown(const std::vector<T>& values) {
  return absl::StrJoin(values, ",",
                       [](std::string* out, const T& value) { out->append(Shown(value)); });
}
std::string Bytes(const void* data, size_t size) {
  return absl::BytesToHexString({static_cast<const char*>(data), size});
}

template <typename... T>
std::string Line(const T&... values) {
  return absl::StrJoin({Shown(values)...}, " ") + "\n";
}

std::string TextOf(const Status& status) {
  const auto& [field, got, want, retry_delay_ms, may_have_executed, reason] = status.detail();
  return Line(status.ToString()) +
         Line(Name(reason), field, got, want, retry_delay_ms, int64_t{may_have_executed});
}

std::string TextOf(const client::RotateReply& reply) {
  std::string text = Line("rotated", reply.request_id, reply.device, reply.attention_factor,
                          int64_t{reply.attention_factor_applied}, reply.warnings);
  for (const client::RotatedTensor& tensor : reply.tensors) {
    text += Line(tensor.role == client::Role::kQ ? "q" : "k", tensor.layout, tensor.shape,
                 static_cast<int64_t>(tensor.dtype), tensor.fp8_scale.value_or(0),
                 Bytes(tensor.data, static_cast<size_t>(tensor.bytes)));
  }
  return text;
}

std::string TextOf(const client::TablesReply& reply) {
  std::string text = Line("tables", reply.config_id, reply.attention_factor, reply.seq_len);
  for (const client::TableArray* array : {&reply.table, &reply.cos, &reply.sin}) {
    text += Line("array", array->shape, Bytes(array->data.data(), array->data.size()));
  }
  return text;
}

// JSON without commas, so that a member may follow the last one.
std::string TextOf(const std::string& json) {
  return absl::StrReplaceAll(json, {{",\n", "\n"}});
}
std::string TextOf(const client::DescribeReply& reply) {
  return TextOf(client::ToJson(reply).value());
}

std::string TextOf(const client::PreparedRotation& prepared) {
  return Line("prepared", prepared.id(), prepared.warnings());
}
template <typename T>
std::string TextOf(const Result<T>& result) {
  return result.ok() ? TextOf(*result) : TextOf(result.status());
}

TensorView Tensor(const std::string& layout, std::vector<int64_t> shape, DType dtype) {
  return {.layout = layout, .dtype = dtype, .shape = std::move(shape), .data = kElements.data()};
}

RopeSpec Spec(RopeConfig config, Pairing pairing = Pairing::kHalf) {
  RopeSpec spec;
  spec.config = std::move(config);
  spec.pairing = pairing;
  return spec;
}

const RopeConfig kPlain = {.head_dim = 8};
const RopeConfig kYarn = {.rope_type = RopeType::kYarn,
                          .rope_theta = 500'000,
                          .head_dim = 16,
                          .max_position_embeddings = 32'768,
                          .original_max_position_embeddings = 4096,
                          .factor = 8};

// K of kYarn and of kPlain.
constexpr char kKeys[] = R"({
    "key": {"rope": {"config": {"rope_type": "yarn", "rope_theta": 500000, "head_dim": 16,
                                "max_position_embeddings": 32768,
                                "original_max_position_embeddings": 4096, "factor": 8},
                     "pairing": "PAIRING_HALF"}, "dtype": "DTYPE_BF16"},
    "other": {"rope": {"config": {"rope_type": "default", "rope_theta": 10000, "head_dim": 8},
                       "pairing": "PAIRING_HALF"}}})";

// Two tokens of q and k.
RotateRequest Step(DType dtype) {
  RotateRequest request;
  request.request_id = "step 1000";
  request.rope = Spec(kPlain);
  request.positions.start = 1000;
  request.tensors = {Tensor("SHD", {2, 2, 8}, dtype), Tensor("SHD", {2, 1, 8}, dtype)};
  request.tensors[1].role = client::Role::kK;
  return request;
}

RotateRequest ToFloat8() {
  RotateRequest request = Step(DType::kBFloat16);
  request.output_dtype = DType::kFloat8E4M3;
  request.tensors[0].fp8_scale = 0.5;
  return request;
}

RotateRequest FusedYarn() {
  RotateRequest request;
  request.request_id = "fused";
  request.labels = {{"tenant", "a"}};
  request.rope = Spec(kYarn, Pairing::kInterleaved);
  request.positions.starts = {5, 90'000};
  request.output_dtype = DType::kFloat32;
  request.tensors = {Tensor("BSHD", {2, 2, 1, 16}, DType::kFloat16)};
  request.tensors[0].output_layout = "BHSD";
  request.tensors[0].scale = 0.125;
  request.tensors[0].norm =
      client::HeadNorm{1e-6, ArrayView{DType::kBFloat16, {16}, kElements.data()}};
  return request;
}

RotateRequest PackedHeads() {
  RotateRequest request;
  request.request_id = "packed";
  request.rope = Spec({.head_dim = 8, .mrope = client::Mrope{{2, 1, 1}}});
  request.positions.position_ids = {0, 1, 2, 0, 4, 5, 0, 7, 8};
  request.positions.position_ids_shape = {3, 3};
  request.tensors = {Tensor("THD", {3, 3, 8}, DType::kBFloat16)};
  request.tensors[0].head_ranges = {{client::Role::kQ, 0, 1}, {client::Role::kK, 1, 2}};
  return request;
}

RotateRequest PackedReposition() {
  RotateRequest request;
  request.request_id = "moved";
  request.rope = Spec(kYarn);
  request.operation = client::Operation::kReposition;
  request.positions.start = 100;
  request.positions.cu_seqlens = {0, 2, 3};
  request.reposition = client::Reposition{request.positions, Spec({.head_dim = 16})};
  request.reposition->from.start = 3;
  request.tensors = {Tensor("THD", {3, 1, 16}, DType::kFloat32)};
  return request;
}

RotateRequest GradientByRows() {
  RotateRequest request;
  request.request_id = "rows";
  request.rope.pairing = Pairing::kInterleaved;
  request.operation = client::Operation::kBackward;
  const ArrayView view{DType::kFloat32, {2, 4}, kElements.data()};
  request.rows = client::Rows{.cos = view, .sin = view};
  request.tensors = {Tensor("SHD", {2, 2, 8}, DType::kFloat32)};
  return request;
}

RotateRequest UnknownModel() {
  RotateRequest request = Step(DType::kFloat32);
  request.rope = {.model = "none"};
  return request;
}

RotateRequest FactorOfZero() {
  RotateRequest request = FusedYarn();
  request.rope.config->factor = 0;
  return request;
}

std::string Prepared(const Client& client) {
  const auto prepared = client.Prepare(Step(DType::kBFloat16), "S");
  if (!prepared.ok()) return TextOf(prepared);
  std::string text = TextOf(prepared);
  for (const int64_t length : {2, 1}) {
    RotateRequest call{.prepared = prepared->WithLength(length), .request_id = "call"};
    call.positions.start = 70'000 + length;
    call.tensors = {{.data = kElements.data()}, {.data = kElements.data()}};
    text += TextOf(client.Rotate(call));
  }
  return text;
}

std::string ByConfigId(const Client& client) {
  const auto described = client.Describe({.rope = Spec(kYarn)});
  if (!described.ok()) return TextOf(described);
  RotateRequest request = PackedReposition();
  request.rope = {.config_id = described->config_id};
  return TextOf(client.Rotate(request));
}

constexpr char kConfigJson[] = R"({"model_type": "llama", "head_dim": 16, "rope_theta": 500000.0,
  "max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
  "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})";

std::string Models(const Client& client) {
  return TextOf(client.CallJson("ListModels", "{}"));
}

std::string Tables(const Client& client) {
  client::TablesRequest request{.rope = Spec(kYarn), .positions = {.begin = 7, .end = 9}};
  std::string text = TextOf(client.GetTables(request));
  request.dtype = DType::kFloat64;
  request.layout = client::TableLayout::kComplex;
  request.reposition = client::TableReposition{{.position_ids = {1, 5}}};
  return text + TextOf(client.GetTables(request));
}

std::string Server(const Client& client) {
  std::string text;
  for (const char* method : {"ListRegions", "ListConnections", "GetServerInfo"}) {
    text += TextOf(client.CallJson(method, "{}"));
  }
  return text;
}

SkewCall Rotating(RotateRequest (*make)()) {
  return [make](const Client& client) { return TextOf(client.Rotate(make())); };
}

}  // namespace

const std::map<std::string, SkewCall>& SkewCalls() {
  static const std::map<std::string, SkewCall> calls = {
      {"describe",
       [](const Client& client) {
         return TextOf(client.Describe({.rope = Spec(kYarn), .positions = {3, 70'000}}));
       }},
      {"describe_json",
       [](const Client& client) {
         return TextOf(client.Describe({.rope = {.config_json = kConfigJson}, .seq_len = 9000}));
       }},
      {"describe_sinusoidal",
       [](const Client& client) {
         return TextOf(
             client.Describe({.rope = Spec(kPlain), .positions = {3}, .sinusoidal = true}));
       }},
      {"error_of_field", Rotating(FactorOfZero)},
      {"error_of_model", Rotating(UnknownModel)},
      {"fingerprint",
       [](const Client& client) { return TextOf(client.CallJson("Fingerprint", kKeys)); }},
      {"models", Models},
      {"rotate_bf16", Rotating([] { return Step(DType::kBFloat16); })},
      {"rotate_by_config_id", ByConfigId},
      {"rotate_fp16", Rotating([] { return Step(DType::kFloat16); })},
      {"rotate_fp32", Rotating([] { return Step(DType::kFloat32); })},
      {"rotate_fused", Rotating(FusedYarn)},
      {"rotate_gradient", Rotating(GradientByRows)},
      {"rotate_moved", Rotating(PackedReposition)},
      {"rotate_packed", Rotating(PackedHeads)},
      {"rotate_prepared", Prepared},
      {"rotate_to_fp8", Rotating(ToFloat8)},
      {"server", Server},
      {"tables", Tables}};
  return calls;
}

}  // namespace rope::testing
