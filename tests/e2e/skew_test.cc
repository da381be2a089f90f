// Programs of a release with this server, and this client with servers of a release, by the wire
// messages of the release. wire/VERSION has a file for each call of SkewCalls:
//
//   > METHOD REQUEST    base64 of the message that the client sent
//   < ANSWER            base64 of the server's answer to it, or
//   ! DETAILS           base64 of the error's grpc-status-details-bin
//   = TEXT              a line of what the program read
//
// and schema.protoset, the schema of the release. ../README.md, Wire: how a release is recorded.
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/util/message_differencer.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "rope/client.h"
#include "rope/v1/status_details.pb.h"
#include "tests/support/byte_buffer.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

namespace fs = std::filesystem;
using client::ArrayView;
using client::Client;
using client::DType;
using client::RopeConfig;
using client::RopeSpec;
using client::RotateRequest;
using client::TensorView;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::util::MessageDifferencer;

// --- calls of a program that uses the C++ client, with what each gives it as text ---

// One or more calls. Returns what a program of version 0.9.0 reads in the replies, a line a field.
using SkewCall = std::function<std::string(const client::Client&)>;

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

// By name. A call that was recorded with a release stays as it is: a change is another call.
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

// --- what they send and read ---

const fs::path kWire = fs::path(ROPE_SOURCE_DIR) / "tests/e2e/wire";
constexpr char kService[] = "/rope.v1.RopeService/";
// Fields that no message has: number 1000, 1, and number 1001, "later".
constexpr char kLaterFields[] = "\xc0\x3e\x01\xca\x3e\x05later";

// Fields of an answer in which servers may differ.
const std::set<std::string> kVaries = {
    // Of the process and the machine.
    "rope.v1.RotateResponse.stage_times",
    "rope.v1.GetServerInfoResponse.version",
    "rope.v1.GetServerInfoResponse.instance_id",
    "rope.v1.GetServerInfoResponse.uptime_seconds",
    "rope.v1.GetServerInfoResponse.table_cache",
    "rope.v1.Device.detail",
    "rope.v1.Limit.value",
    "rope.v1.Budget.limit",
    "rope.v1.Budget.used",
    "rope.v1.Refusal.count",
    "rope.v1.Connection.read_bytes",
    "rope.v1.Connection.reply_bytes",
    // Texts for people.
    "rope.v1.RotateResponse.warnings",
    "rope.v1.PrepareResponse.warnings",
    "rope.v1.DescribeResponse.warnings",
    "rope.v1.GetTablesResponse.warnings",
    "rope.v1.KeyIdentity.notes",
    "rope.v1.KeyComparison.differences",
    "rope.v1.StatusDetails.message",
    "rope.v1.Error.message",
    "rope.v1.Error.got",
    "rope.v1.Error.want",
    "google.protobuf.Any.value",  // of types that the schema lacks: google.rpc, which has these too
    // Readings of other engines, which are corrected and added to.
    "rope.v1.DescribeResponse.readings",
    "rope.v1.DescribeResponse.scale_readings",
    "rope.v1.KeyIdentity.version",
    // Ids, whose formats a minor version may change. Later requests have the server's own.
    "rope.v1.PrepareResponse.prepared_id",
    "rope.v1.DescribeResponse.config_id",
    "rope.v1.GetTablesResponse.config_id",
    "rope.v1.KeyIdentity.fingerprint",
};

// Answers with lists to which a later server adds elements.
const std::set<std::string> kGrow = {"ListModels", "GetServerInfo"};

std::string ReadFile(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

struct Answer {
  std::string bytes;  // empty for an error
  grpc::Status status = {};
};

struct Exchange {
  std::string method;  // "Rotate"
  std::string request;
  Answer answer;
};

// What one call of SkewCalls sent and got, and what it gave the program.
struct Recording {
  std::vector<Exchange> exchanges;
  std::string text;
};

grpc::Status ErrorOf(const std::string& details) {
  v1::StatusDetails parsed;
  EXPECT_TRUE(parsed.ParseFromString(details));
  return {static_cast<grpc::StatusCode>(parsed.code()), parsed.message(), details};
}

std::string FileOf(const Recording& recording) {
  std::string file;
  for (const auto& [method, request, answer] : recording.exchanges) {
    absl::StrAppend(&file, "> ", method, " ", absl::Base64Escape(request), "\n");
    const bool ok = answer.status.ok();
    absl::StrAppend(&file, ok ? "< " : "! ",
                    absl::Base64Escape(ok ? answer.bytes : answer.status.error_details()), "\n");
  }
  for (const absl::string_view line : absl::StrSplit(recording.text, '\n', absl::SkipEmpty())) {
    absl::StrAppend(&file, "= ", line, "\n");
  }
  return file;
}

Recording ReadRecording(const fs::path& path) {
  Recording recording;
  const std::vector<std::string> lines = absl::StrSplit(ReadFile(path), '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    std::string bytes;
    if (line[0] == '=') {
      absl::StrAppend(&recording.text, line.substr(2), "\n");
    } else if (!absl::Base64Unescape(words.back(), &bytes)) {
      ADD_FAILURE() << path << ": got " << line;
    } else if (line[0] == '>') {
      recording.exchanges.push_back({words[1], bytes, {}});
    } else if (line[0] == '<') {
      recording.exchanges.back().answer.bytes = bytes;
    } else {
      recording.exchanges.back().answer.status = ErrorOf(bytes);
    }
  }
  return recording;
}

// The recordings of a release by the names of their calls.
std::map<std::string, Recording> ReadRelease(const fs::path& folder) {
  std::map<std::string, Recording> release;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".txt") continue;
    release[entry.path().stem()] = ReadRecording(entry.path());
  }
  return release;
}

// Messages as a release reads them.
class Schema {
 public:
  explicit Schema(const fs::path& folder) {
    google::protobuf::FileDescriptorSet set;
    EXPECT_TRUE(set.ParseFromString(ReadFile(folder / "schema.protoset"))) << folder;
    for (const auto& file : set.file()) EXPECT_NE(pool_.BuildFile(file), nullptr) << file.name();
  }

  std::unique_ptr<Message> Parse(const std::string& type, const std::string& bytes) const {
    std::unique_ptr<Message> message(
        factory_.GetPrototype(pool_.FindMessageTypeByName(type))->New());
    EXPECT_TRUE(message->ParseFromString(bytes)) << type;
    return message;
  }
  std::unique_ptr<Message> ParseRequest(const Exchange& exchange) const {
    return Parse(Method(exchange.method).input_type()->full_name(), exchange.request);
  }
  std::unique_ptr<Message> ParseAnswer(const std::string& method, const Answer& answer) const {
    return answer.status.ok() ? Parse(Method(method).output_type()->full_name(), answer.bytes)
                              : Parse("rope.v1.StatusDetails", answer.status.error_details());
  }

 private:
  const google::protobuf::MethodDescriptor& Method(const std::string& name) const {
    return *pool_.FindServiceByName("rope.v1.RopeService")->FindMethodByName(name);
  }

  google::protobuf::DescriptorPool pool_;
  mutable google::protobuf::DynamicMessageFactory factory_{&pool_};
};

class Varies final : public MessageDifferencer::IgnoreCriteria {
 public:
  bool IsIgnored(const Message&, const Message&, const FieldDescriptor* field,
                 const std::vector<MessageDifferencer::SpecificField>&) override {
    return kVaries.contains(field->full_name());
  }
};

// The differences as text; empty: none.
std::string DifferenceOf(MessageDifferencer& differencer, const Message& want, const Message& got) {
  std::string text;
  differencer.ReportDifferencesToString(&text);
  return differencer.Compare(want, got) ? "" : text;
}

// What a client of the release would see in `got` that is not `want`.
std::string DifferenceOf(const Schema& schema, const std::string& method, const Answer& want,
                         const Answer& got) {
  if (want.status.error_code() != got.status.error_code()) {
    return absl::StrCat("got status ", got.status.error_code(), " ", got.status.error_message());
  }
  const auto received = schema.ParseAnswer(method, got);
  received->DiscardUnknownFields();
  MessageDifferencer differencer;
  differencer.set_float_comparison(MessageDifferencer::APPROXIMATE);
  differencer.AddIgnoreCriteria(new Varies);  // owned by `differencer`
  if (kGrow.contains(method)) {
    differencer.set_scope(MessageDifferencer::PARTIAL);
    differencer.set_repeated_field_comparison(MessageDifferencer::AS_SET);
  }
  return DifferenceOf(differencer, *schema.ParseAnswer(method, want), *received);
}

// Sends the bytes of one message.
Answer Ask(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
           const std::string& request) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, kService + method, &queue);
  const auto step = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const grpc::Slice slice(request);
  grpc::ByteBuffer reply;
  Answer answer;
  call->StartCall(nullptr);
  step();
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  step();
  call->Read(&reply, nullptr);
  if (step()) answer.bytes = BytesOf(reply);
  call->Finish(&answer.status, nullptr);
  step();
  return answer;
}

// A server that answers each message of a method of ours by a function, one at a time. It says of
// its health that it serves.
class AnsweringServer final : public grpc::CallbackGenericService {
 public:
  using Answering = std::function<Answer(const std::string& method, const std::string& request)>;

  explicit AnsweringServer(Answering answering) : answering_(std::move(answering)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
  }
  ~AnsweringServer() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    Reactor(AnsweringServer& server, std::string method)
        : server_(server), method_(std::move(method)) {
      StartRead(&request_);
    }

    void OnReadDone(bool ok) override {
      if (!ok) return Finish(grpc::Status::OK);  // the client has half-closed
      const Answer answer = server_.AnswerTo(method_, BytesOf(request_));
      if (!answer.status.ok()) return Finish(answer.status);
      const grpc::Slice slice(answer.bytes);
      reply_ = grpc::ByteBuffer(&slice, 1);
      StartWrite(&reply_);
    }
    void OnWriteDone(bool) override { StartRead(&request_); }
    void OnDone() override { delete this; }

   private:
    AnsweringServer& server_;
    const std::string method_;
    grpc::ByteBuffer request_;
    grpc::ByteBuffer reply_;
  };

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    return new Reactor(*this, context->method());  // owned by itself
  }

  Answer AnswerTo(const std::string& method, const std::string& request) {
    if (!absl::StartsWith(method, kService)) return {"\x08\x01"};  // SERVING
    const std::lock_guard lock(mutex_);
    return answering_(method.substr(sizeof(kService) - 1), request);
  }

  const Answering answering_;
  std::mutex mutex_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// What a call of this client gives with a server that answers so.
std::string TextWith(const std::string& name, AnsweringServer::Answering answering) {
  const AnsweringServer server(std::move(answering));
  const auto call = SkewCalls().find(name);
  if (call == SkewCalls().end()) return "SkewCalls lacks this call";
  const auto client = client::Client::Connect(server.address());
  return client.ok() ? call->second(*client) : client.status().ToString();
}

// The reference device, whose bits are the same on every machine.
TestServer RealServer() {
  return TestServer({"--device=reference", "--memory_bytes=1073741824", "--threads=1"});
}

// Writes the messages of this client and this server, and their schema.
void Record(const fs::path& folder) {
  google::protobuf::FileDescriptorSet schema;
  ASSERT_TRUE(schema.ParseFromString(ReadFile(ROPE_BINARY_DIR "/rope.protoset")));
  for (auto& file : *schema.mutable_file()) file.clear_source_code_info();
  fs::create_directories(folder);
  std::ofstream(folder / "schema.protoset", std::ios::binary) << schema.SerializeAsString();
  const TestServer server = RealServer();
  const auto channel = server.NewChannel();
  for (const auto& [name, call] : SkewCalls()) {
    Recording recording;
    recording.text = TextWith(name, [&](const std::string& method, const std::string& request) {
      recording.exchanges.push_back({method, request, Ask(channel, method, request)});
      return recording.exchanges.back().answer;
    });
    std::ofstream(folder / (name + ".txt")) << FileOf(recording);
  }
}

// Adds fields that no schema has to `message` and to all messages in it, as a later release may.
void AddLaterFields(Message& message) {
  const auto& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->full_name() == "google.protobuf.Any.value") {
      const std::string bytes = reflection.GetString(message, field);
      reflection.SetString(&message, field, bytes + kLaterFields);
    }
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map()) continue;
    if (!field->is_repeated()) AddLaterFields(*reflection.MutableMessage(&message, field));
    for (int i = 0; field->is_repeated() && i < reflection.FieldSize(message, field); ++i) {
      AddLaterFields(*reflection.MutableRepeatedMessage(&message, field, i));
    }
  }
  reflection.MutableUnknownFields(&message)->ParseFromString(kLaterFields);
}

class SkewTest : public ::testing::Test {
 protected:
  // Runs for each release of which messages are recorded.
  static void ForEachRelease(
      const std::function<void(const Schema&, const std::map<std::string, Recording>&)>& visit) {
    int releases = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator(kWire)) {
      SCOPED_TRACE(entry.path());
      visit(Schema(entry.path()), ReadRelease(entry.path()));
      ++releases;
    }
    EXPECT_GT(releases, 0);
  }

  // What a server answers, for what was recorded.
  using Change = std::function<Answer(const Schema&, const Exchange&)>;

  // Every call of this client, with answers that are `change` of the recorded ones.
  static void ExpectRecordedTexts(const Change& change) {
    ForEachRelease([&change](const Schema& schema, const auto& release) {
      for (const auto& [name, recording] : release) {
        ExpectRecordedText(schema, name, recording, change);
      }
    });
  }

 private:
  static void ExpectRecordedText(const Schema& schema, const std::string& name,
                                 const Recording& recording, const Change& change) {
    SCOPED_TRACE(name);
    size_t next = 0;
    const auto answer = [&](const std::string& method, const std::string& request) -> Answer {
      if (next == recording.exchanges.size() || recording.exchanges[next].method != method) {
        return {"", grpc::Status(grpc::StatusCode::ABORTED, "not recorded: " + method)};
      }
      const Exchange& recorded = recording.exchanges[next++];
      MessageDifferencer differencer;
      EXPECT_EQ(DifferenceOf(differencer, *schema.ParseRequest(recorded),
                             *schema.ParseRequest({method, request, {}})),
                "")
          << name << ": the client sends another " << method;
      return change(schema, recorded);
    };
    const std::string text = TextWith(name, answer);
    const std::set<std::string> lines = absl::StrSplit(text, '\n');
    std::string lost;
    for (const absl::string_view line : absl::StrSplit(recording.text, '\n')) {
      if (!lines.contains(std::string(line))) absl::StrAppend(&lost, line, "\n");
    }
    EXPECT_EQ(lost, "") << "in\n" << text;
    EXPECT_EQ(next, recording.exchanges.size());
  }
};

TEST_F(SkewTest, TheRecorderWritesCallsOfEveryMethod) {
  const char* const asked = std::getenv("ROPE_WRITE_WIRE");
  const fs::path folder = asked != nullptr ? asked : TemporaryFolder();
  Record(folder);
  // What the client sends for its shared memory, and what only other languages send.
  std::set<std::string> methods = {"RegisterRegion", "UnregisterRegion", "RotateStream"};
  for (const auto& [name, recording] : ReadRelease(folder)) {
    EXPECT_EQ(ReadFile(folder / (name + ".txt")), FileOf(recording));
    for (const Exchange& exchange : recording.exchanges) methods.insert(exchange.method);
  }
  const auto& service = *v1::GetServerInfoRequest::descriptor()->file()->service(0);
  for (int i = 0; i < service.method_count(); ++i) {
    EXPECT_TRUE(methods.contains(service.method(i)->name())) << service.method(i)->name();
  }
}

TEST_F(SkewTest, ThisServerAnswersAnOldClientAsItsOwnServerDid) {
  ForEachRelease([](const Schema& schema, const auto& release) {
    const TestServer server = RealServer();
    const auto channel = server.NewChannel();
    for (const auto& [name, recording] : release) {
      SCOPED_TRACE(name);
      std::vector<std::pair<std::string, std::string>> ids;  // recorded, and this server's own
      for (const auto& [method, request, want] : recording.exchanges) {
        const Answer got = Ask(channel, method, absl::StrReplaceAll(request, ids));
        EXPECT_EQ(DifferenceOf(schema, method, want, got), "") << method;
        if (!want.status.ok() || !got.status.ok()) continue;
        const auto recorded = schema.ParseAnswer(method, want);
        const auto received = schema.ParseAnswer(method, got);
        for (const char* id : {"config_id", "prepared_id"}) {
          const FieldDescriptor* const field = recorded->GetDescriptor()->FindFieldByName(id);
          if (field == nullptr) continue;
          ids.emplace_back(recorded->GetReflection()->GetString(*recorded, field),
                           received->GetReflection()->GetString(*received, field));
        }
      }
    }
  });
}

TEST_F(SkewTest, ThisClientReadsAnOldServerAndSendsWhatItKnows) {
  ExpectRecordedTexts([](const Schema&, const Exchange& recorded) { return recorded.answer; });
}

TEST_F(SkewTest, ThisClientSkipsFieldsOfALaterServer) {
  ExpectRecordedTexts([](const Schema& schema, const Exchange& recorded) -> Answer {
    const auto later = schema.ParseAnswer(recorded.method, recorded.answer);
    AddLaterFields(*later);
    const std::string bytes = later->SerializeAsString();
    if (recorded.answer.status.ok()) return {bytes};
    return {"", ErrorOf(bytes)};
  });
}

}  // namespace
}  // namespace rope::testing
