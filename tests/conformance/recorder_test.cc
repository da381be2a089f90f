// What the service and ropectl answer, recorded: one hash for each of some two thousand requests
// and tool outputs (recorded/*.txt). A change that should not change answers changes no line.
//
// ROPE_RECORD=FOLDER build/tests/recorder_test writes FOLDER/*.txt, which replace recorded/*.txt,
// and each text in FOLDER/texts. Two builds' folders show by diff what a changed line means.
#include <google/protobuf/message.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/cli/npy.h"
#include "rope/v1/rope_service.grpc.pb.h"
#include "server/server.h"
#include "tests/conformance/request_generator.h"
#include "tests/support/canonical_text.h"
#include "tests/support/prepared_call.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

namespace rope::testing {
namespace {

namespace fs = std::filesystem;
using Stub = v1::RopeService::Stub;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// --- every small change of a message: the fields of its schema, one at a time ---

struct Edit {
  std::string name;
  std::function<void()> make;
};

// Edits of one field of `message`: of the whole field, or of the first element of a list.
class FieldEdits {
 public:
  FieldEdits(Message& message, const FieldDescriptor* field)
      : message_(message), reflection_(*message.GetReflection()), field_(field) {}

  std::vector<Edit> All() {
    if (IsSet()) Add("cleared", [this] { reflection_.ClearField(&message_, field_); });
    if (field_->is_map()) return std::move(edits_);
    if (field_->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      AddMessage();
    } else {
      AddValues();
      if (field_->is_repeated() && IsSet()) AddLonger();
    }
    return std::move(edits_);
  }

  bool IsSet() const {
    return field_->is_repeated() ? reflection_.FieldSize(message_, field_) > 0
                                 : reflection_.HasField(message_, field_);
  }

 private:
  void Add(const std::string& name, std::function<void()> make) {
    edits_.push_back({absl::StrCat(field_->name(), "=", name), std::move(make)});
  }

  void AddMessage() {
    if (field_->is_repeated()) {
      Add("one more", [this] { reflection_.AddMessage(&message_, field_); });
    } else if (!IsSet()) {
      Add("empty", [this] { reflection_.MutableMessage(&message_, field_); });
    }
  }

  // A list that has one element more than it should.
  void AddLonger() {
    Add("longer", [this] {
      switch (field_->cpp_type()) {
        case FieldDescriptor::CPPTYPE_INT64:
          return reflection_.AddInt64(&message_, field_, 1);
        case FieldDescriptor::CPPTYPE_DOUBLE:
          return reflection_.AddDouble(&message_, field_, 1);
        case FieldDescriptor::CPPTYPE_INT32:
          return reflection_.AddInt32(&message_, field_, 1);
        default:
          return reflection_.AddString(&message_, field_, "x");
      }
    });
  }

  template <typename T>
  void AddSets(const std::vector<T>& values,
               void (Reflection::*set)(Message*, const FieldDescriptor*, T) const,
               void (Reflection::*set_element)(Message*, const FieldDescriptor*, int, T) const,
               void (Reflection::*add)(Message*, const FieldDescriptor*, T) const) {
    for (const T value : values) {
      Add(absl::StrCat(value), [this, value, set, set_element, add] {
        if (!field_->is_repeated()) {
          (reflection_.*set)(&message_, field_, value);
        } else if (IsSet()) {
          (reflection_.*set_element)(&message_, field_, 0, value);
        } else {
          (reflection_.*add)(&message_, field_, value);
        }
      });
    }
  }

  void AddText(const std::string& name, std::string value) {
    Add(name, [this, value = std::move(value)] {
      if (!field_->is_repeated()) {
        reflection_.SetString(&message_, field_, value);
      } else if (IsSet()) {
        reflection_.SetRepeatedString(&message_, field_, 0, value);
      } else {
        reflection_.AddString(&message_, field_, value);
      }
    });
  }

  void AddTexts() {
    if (field_->type() == FieldDescriptor::TYPE_BYTES && IsSet()) {
      const std::string bytes = reflection_.GetString(message_, field_);
      AddText("a byte less", bytes.substr(0, bytes.size() - 1));
      AddText("a byte more", bytes + '\1');
    }
    AddText("a text", "no such text");
  }

  void AddValues() {
    switch (field_->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT64:
        return AddSets<int64_t>({-1, 0, int64_t{1} << 62}, &Reflection::SetInt64,
                                &Reflection::SetRepeatedInt64, &Reflection::AddInt64);
      case FieldDescriptor::CPPTYPE_INT32:
        return AddSets<int32_t>({-1, 0}, &Reflection::SetInt32, &Reflection::SetRepeatedInt32,
                                &Reflection::AddInt32);
      case FieldDescriptor::CPPTYPE_UINT64:
        return AddSets<uint64_t>({1, uint64_t{1} << 63}, &Reflection::SetUInt64,
                                 &Reflection::SetRepeatedUInt64, &Reflection::AddUInt64);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return AddSets<double>({-1, 0, 1e300, std::nan("")}, &Reflection::SetDouble,
                               &Reflection::SetRepeatedDouble, &Reflection::AddDouble);
      case FieldDescriptor::CPPTYPE_BOOL:
        return AddSets<bool>({!reflection_.GetBool(message_, field_)}, &Reflection::SetBool,
                             &Reflection::SetRepeatedBool, &Reflection::AddBool);
      case FieldDescriptor::CPPTYPE_ENUM: {
        std::vector<int> numbers;
        for (int i = 0; i < field_->enum_type()->value_count(); ++i) {
          numbers.push_back(field_->enum_type()->value(i)->number());
        }
        numbers.push_back(99);
        return AddSets<int>(numbers, &Reflection::SetEnumValue, &Reflection::SetRepeatedEnumValue,
                            &Reflection::AddEnumValue);
      }
      default:
        return AddTexts();
    }
  }

  Message& message_;
  const Reflection& reflection_;
  const FieldDescriptor* const field_;
  std::vector<Edit> edits_;
};

void Visit(Message& message, const std::string& path,
           const std::function<void(const std::string&)>& visit) {
  const std::unique_ptr<Message> original(message.New());
  original->CopyFrom(message);
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* const field = message.GetDescriptor()->field(i);
    FieldEdits edits(message, field);
    for (const Edit& edit : edits.All()) {
      edit.make();
      visit(path + edit.name);
      message.CopyFrom(*original);
    }
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || !edits.IsSet()) continue;
    if (field->is_map()) continue;
    Message& inside = field->is_repeated() ? *reflection.MutableRepeatedMessage(&message, field, 0)
                                           : *reflection.MutableMessage(&message, field);
    Visit(inside, absl::StrCat(path, field->name(), "."), visit);
  }
}

// Calls `visit` with each change made in `message`, and undoes it. The name is the path of the
// field and the change: "rope.config.factor=-1", "positions=cleared". Messages inside are visited
// where they are set; of a list, the first element.
void ForEachEdit(Message& message, const std::function<void(const std::string& name)>& visit) {
  Visit(message, "", visit);
}

// --- the recorder ---

const fs::path kRecorded = fs::path(ROPE_SOURCE_DIR) / "tests/conformance/recorded";
const fs::path kConfigs = fs::path(ROPE_SOURCE_DIR) / "tests/conformance/configs";

std::string ReadFile(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void WriteFile(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

// conformance/configs/*.json, sorted.
std::vector<fs::path> ConfigFiles() {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(kConfigs)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

// The lines of one file of recorded/: "NAME HASH".
class Recording {
 public:
  explicit Recording(std::string group) : group_(std::move(group)) {
    if (const char* folder = std::getenv("ROPE_RECORD")) folder_ = folder;
    for (const absl::string_view line : absl::StrSplit(ReadFile(File(kRecorded)), '\n')) {
      const size_t space = line.rfind(' ');
      if (space == absl::string_view::npos) continue;
      recorded_[std::string(line.substr(0, space))] = std::string(line.substr(space + 1));
    }
  }

  void Add(const std::string& name, const std::string& text) {
    const std::string hash = HashOf(text);
    absl::StrAppend(&lines_, name, " ", hash, "\n");
    ++count_;
    if (!folder_.empty()) {
      const std::string file = absl::StrReplaceAll(name, {{"/", "_"}, {" ", "_"}});
      WriteFile(folder_ / "texts" / group_ / (file + ".txt"), text);
      return;
    }
    const auto recorded = recorded_.find(name);
    if (recorded == recorded_.end()) {
      Report(name, "is not recorded");
    } else {
      if (recorded->second != hash) Report(name, "has changed:\n" + text.substr(0, 2000));
      recorded_.erase(recorded);
    }
  }

  // Writes the file, or reports how many lines differ.
  void Finish() {
    if (!folder_.empty()) return WriteFile(File(folder_), lines_);
    for (const auto& [name, hash] : recorded_) Report(name, "was not asked");
    std::printf("measured: recorder: %s: %d lines, %d differ\n", group_.c_str(), count_, changed_);
    EXPECT_EQ(changed_, 0) << "ROPE_RECORD=FOLDER writes the texts and the new " << group_
                           << ".txt";
  }

 private:
  fs::path File(const fs::path& folder) const { return folder / (group_ + ".txt"); }

  void Report(const std::string& name, const std::string& how) {
    constexpr int kShown = 5;
    if (++changed_ <= kShown) ADD_FAILURE() << group_ << ": " << name << " " << how;
  }

  const std::string group_;
  fs::path folder_;  // empty: compare
  std::map<std::string, std::string> recorded_;
  std::string lines_;
  int count_ = 0;
  int changed_ = 0;
};

// The instruction set of this program's tests is the same on every machine. It is chosen before the
// first test runs, because the kernels keep their choice.
[[maybe_unused]] const bool is_chosen = (hwy::SetSupportedTargetsForTest(HWY_SSE4), true);

// One server in this process.
class RecorderTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    spdlog::set_level(spdlog::level::off);
    server::ServerOptions options;
    options.device = "cpu";
    options.listen = {"127.0.0.1:0"};
    options.memory_bytes = int64_t{1} << 30;
    options.threads = 2;
    static const server::SteadyClock clock;
    server_ = server::Server::Create(options, clock).value();
    stub_ = v1::RopeService::NewStub(
        grpc::CreateChannel(server_->addresses().front(), grpc::InsecureChannelCredentials()));
  }
  static void TearDownTestSuite() {
    stub_.reset();
    server_.reset();
  }

  template <typename Request, typename Response>
  using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

  template <typename Request, typename Response>
  static std::string Ask(Method<Request, Response> method, const Request& request) {
    grpc::ClientContext context;
    Response response;
    return CanonicalText((*stub_.*method)(&context, request, &response), response);
  }
  static std::string Rotate(const v1::RotateRequest& request) {
    return Ask(&Stub::Rotate, request);
  }

  // The request by id; the answer to Prepare if it is refused.
  static std::string RotatePrepared(const v1::RotateRequest& request) {
    grpc::ClientContext context;
    v1::PrepareResponse prepared;
    const grpc::Status status = stub_->Prepare(&context, PrepareOf(request), &prepared);
    if (!status.ok()) return CanonicalText(status, prepared);
    return Rotate(CallOf(request, prepared.prepared_id()));
  }

  // Records the answer to each edit of `request`.
  template <typename Request, typename Response>
  static void AskEdits(const std::string& name, Method<Request, Response> method, Request request,
                       Recording& recording) {
    recording.Add(name, Ask(method, request));
    ForEachEdit(request, [&](const std::string& edit) {
      recording.Add(absl::StrCat(name, " ", edit), Ask(method, request));
    });
  }

  static inline std::unique_ptr<server::Server> server_;
  static inline std::unique_ptr<Stub> stub_;
};

// `count` elements of `dtype` that every dtype holds exactly.
std::string Elements(int64_t count, v1::DType dtype, uint32_t seed) {
  std::minstd_rand random(seed);
  std::string raw;
  for (int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(random() % 128) / 16 - 4;
    std::array<char, sizeof(float)> bytes;
    std::memcpy(bytes.data(), &value, sizeof(value));
    raw.append(dtype == v1::DTYPE_FP32 ? bytes.data() : bytes.data() + 2,
               dtype == v1::DTYPE_FP32 ? 4 : 2);  // bf16 is the upper half
  }
  return raw;
}

v1::Tensor& AddTensor(v1::Role role, v1::DType dtype, const std::vector<int64_t>& shape,
                      v1::RotateRequest& request) {
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(role);
  tensor.set_layout(shape.size() == 3 ? "SHD" : "BSHD");
  tensor.mutable_array()->set_dtype(dtype);
  int64_t count = 1;
  for (const int64_t length : shape) {
    tensor.mutable_array()->add_shape(length);
    count *= length;
  }
  tensor.mutable_array()->set_raw(Elements(count, dtype, static_cast<uint32_t>(count)));
  return tensor;
}

TEST_F(RecorderTest, Rotations) {
  Recording recording("rotations");
  RequestGenerator generator(2411);
  EveryChoice every;
  int number = 0;
  every.ForEach([&](const Choices& choices) {
    if (number++ % 71 != 0) return;
    const v1::RotateRequest request = generator.Make(choices);
    recording.Add(absl::StrCat("whole ", number), Rotate(request));
    if (number % 4 == 0) recording.Add(absl::StrCat("prepared ", number), RotatePrepared(request));
  });
  recording.Finish();
}

// Every preset, each layer type, in every operation.
TEST_F(RecorderTest, Models) {
  Recording recording("models");
  grpc::ClientContext context;
  v1::ListModelsResponse list;
  ASSERT_TRUE(stub_->ListModels(&context, {}, &list).ok());
  recording.Add("list", CanonicalText(list));
  for (const v1::Model& model : list.models()) {
    std::vector<std::string> types(model.layer_types().begin(), model.layer_types().end());
    if (types.empty()) types.emplace_back();
    for (const std::string& type : types) {
      const std::string name = absl::StrCat(model.name(), " ", type);
      v1::DescribeRequest describe;
      describe.mutable_rope()->set_model(model.name());
      describe.mutable_rope()->set_layer_type(type);
      for (const int64_t position : {0, 1, 70'000, 1'000'000}) describe.add_positions(position);
      recording.Add("describe " + name, Ask(&Stub::Describe, describe));
      v1::RotateRequest rotate;
      *rotate.mutable_rope() = describe.rope();
      for (const int64_t position : {0, 5, 100'000}) {
        rotate.mutable_positions()->mutable_position_ids()->add_numbers(
            static_cast<double>(position));
      }
      AddTensor(v1::ROLE_K, v1::DTYPE_BF16, {3, 2, model.head_dim() > 0 ? model.head_dim() : 128},
                rotate);
      for (int operation = 1; operation < v1::Operation_ARRAYSIZE; ++operation) {
        rotate.set_operation(static_cast<v1::Operation>(operation));
        rotate.clear_reposition();
        if (operation == v1::OPERATION_REPOSITION) {
          rotate.mutable_reposition()->mutable_from()->set_start(7);
        }
        recording.Add(absl::StrCat(v1::Operation_Name(operation), " ", name), Rotate(rotate));
      }
    }
  }
  recording.Finish();
}

v1::RopeConfig YarnConfig() {
  v1::RopeConfig config;
  config.set_rope_type("yarn");
  config.set_rope_theta(500'000);
  config.set_head_dim(16);
  config.set_max_position_embeddings(32'768);
  config.set_original_max_position_embeddings(4096);
  config.set_factor(8);
  return config;
}

// A request in which most fields are set, so that each has its edits.
v1::RotateRequest FullRequest() {
  v1::RotateRequest request;
  *request.mutable_rope()->mutable_config() = YarnConfig();
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  v1::Array& starts = *request.mutable_positions()->mutable_starts();
  for (const double start : {5, 90'000}) starts.add_numbers(start);
  (*request.mutable_labels())["tenant"] = "a";
  request.mutable_output()->set_dtype(v1::DTYPE_FP32);
  v1::Tensor& q = AddTensor(v1::ROLE_UNSPECIFIED, v1::DTYPE_BF16, {2, 3, 4, 16}, request);
  v1::HeadRange& range = *q.add_head_ranges();
  range.set_role(v1::ROLE_Q);
  range.set_end(3);
  q.mutable_norm()->set_eps(1e-6);
  q.set_scale(0.5);
  AddTensor(v1::ROLE_K, v1::DTYPE_FP32, {2, 3, 1, 16}, request);
  return request;
}

v1::RotateRequest PackedReposition() {
  v1::RotateRequest request;
  request.mutable_rope()->set_model("llama-3.1-8b");
  request.set_operation(v1::OPERATION_REPOSITION);
  v1::Positions& positions = *request.mutable_positions();
  positions.set_start(100);
  for (const double offset : {0, 2, 5}) positions.mutable_cu_seqlens()->add_numbers(offset);
  *request.mutable_reposition()->mutable_from() = positions;
  request.mutable_reposition()->mutable_from()->set_start(3);
  AddTensor(v1::ROLE_K, v1::DTYPE_BF16, {5, 1, 128}, request).set_layout("THD");
  return request;
}

v1::RotateRequest RowsRequest() {
  v1::RotateRequest request;
  request.mutable_rope()->set_pairing(v1::PAIRING_INTERLEAVED);
  v1::Array& angles = *request.mutable_rows()->mutable_angles();
  for (const int64_t length : {2, 4}) angles.add_shape(length);
  for (int i = 0; i < 8; ++i) angles.add_numbers(0.25 * i);
  AddTensor(v1::ROLE_Q, v1::DTYPE_FP32, {2, 2, 8}, request);
  return request;
}

TEST_F(RecorderTest, EditsOfRotate) {
  Recording recording("edits_of_rotate");
  AskEdits("full", &Stub::Rotate, FullRequest(), recording);
  AskEdits("packed reposition", &Stub::Rotate, PackedReposition(), recording);
  AskEdits("rows", &Stub::Rotate, RowsRequest(), recording);
  recording.Finish();
}

TEST_F(RecorderTest, EditsOfOtherMethods) {
  Recording recording("edits_of_other_methods");
  v1::DescribeRequest describe;
  *describe.mutable_rope()->mutable_config() = YarnConfig();
  describe.add_positions(3);
  v1::RopeConfig& config = *describe.mutable_rope()->mutable_config();
  for (const char* type : {"yarn", "longrope"}) {
    config.set_rope_type(type);
    for (int i = 0; i < 8 && config.rope_type() == "longrope"; ++i) {
      config.add_short_factor(1 + i);
      config.add_long_factor(2 + i);
    }
    AskEdits(absl::StrCat("describe ", type), &Stub::Describe, describe, recording);
  }
  v1::GetTablesRequest tables;
  tables.mutable_rope()->set_model("llama-3.1-8b");
  tables.mutable_positions()->mutable_range()->set_begin(7);
  tables.mutable_positions()->mutable_range()->set_end(9);
  tables.mutable_reposition()->mutable_from()->mutable_position_ids()->add_numbers(1);
  tables.mutable_reposition()->mutable_from()->mutable_position_ids()->add_numbers(2);
  AskEdits("tables", &Stub::GetTables, tables, recording);
  v1::PrepareRequest prepare = PrepareOf(FullRequest());
  prepare.set_open_axis("S");
  AskEdits("prepare", &Stub::Prepare, prepare, recording);
  recording.Finish();
}

// config.json files through the service, and their tables.
TEST_F(RecorderTest, Configs) {
  Recording recording("configs");
  for (const fs::path& file : ConfigFiles()) {
    const std::string name = file.stem();
    for (const int layer : {0, 5}) {
      v1::DescribeRequest describe;
      describe.mutable_rope()->set_config_json(ReadFile(file));
      describe.mutable_rope()->set_layer(layer);
      recording.Add(absl::StrCat("describe ", name, " ", layer), Ask(&Stub::Describe, describe));
      v1::GetTablesRequest tables;
      *tables.mutable_rope() = describe.rope();
      tables.mutable_positions()->mutable_range()->set_begin(50'000);
      tables.mutable_positions()->mutable_range()->set_end(50'002);
      recording.Add(absl::StrCat("tables ", name, " ", layer), Ask(&Stub::GetTables, tables));
    }
  }
  recording.Finish();
}

// What ropectl prints and its exit status.
class ToolsTest : public RecorderTest {
 protected:
  void Run(const std::string& name, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), RopectlProgram());
    const Outcome outcome = RunProgram(arguments);
    recording_.Add(name, absl::StrCat("status ", outcome.status, "\n",
                                      CanonicalText(outcome.output, {kConfigs, folder_, target_})));
  }

  const std::string folder_ = TemporaryFolder();
  const std::string target_ = server_->addresses().front();
  Recording recording_{"tools"};
};

TEST_F(ToolsTest, Outputs) {
  Run("help", {"help"});
  for (const char* command : {"rotate", "reposition", "tables", "describe", "lint", "diff",
                              "verify", "load", "models", "info", "health"}) {
    Run(absl::StrCat("help ", command), {"help", command});
  }
  std::string before;
  for (const fs::path& file : ConfigFiles()) {
    const std::string name = file.stem();
    Run("describe " + name, {"describe", file});
    Run("describe --json " + name, {"describe", "--json", "--layer=0", file});
    Run("lint " + name, {"lint", file});
    Run("lint --json " + name, {"lint", "--json", file});
    if (!before.empty()) Run("diff " + name, {"diff", "--json", before, file});
    before = file;
  }
  const std::string input = folder_ + "/q.npy";
  const std::string output = folder_ + "/rotated.npy";
  WriteFile(input,
            client::NpyHeader("<f4", {40, 2, 128}) + Elements(40 * 2 * 128, v1::DTYPE_FP32, 11));
  const std::string target = "--target=" + target_;
  RunProgram({RopectlProgram(), "rotate", target, "--model=llama-3.1-8b", "--start=100",
              "--layout=SHD", "--q=" + input, "--output_q=" + output});
  recording_.Add("rotated", ReadFile(output));
  Run("tables", {"tables", target, "--model=llama-3.1-8b", "--end=9", "--output=" + output});
  recording_.Add("table", ReadFile(output));
  Run("models", {"models", target});
  Run("health", {"health", target});
  recording_.Finish();
}

}  // namespace
}  // namespace rope::testing
