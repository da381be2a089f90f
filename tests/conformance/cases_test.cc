// Requests and what they are answered, as text (cases/*.txt), by every way of a call: unary, on a
// stream, through a ring and in this process. Paragraphs of such a file:
//
//   base NAME METHOD        A message, made by the edits that follow. Or a base instead of METHOD.
//   on NAME                 The cases that follow are edits of this base, not of the last one.
//   EDITS, "?" and "="      A case: edits of the base, fields of the answer that are shown ("plan":
//                           facts of the plan), and the answer: "ok" with the hash of all of it and
//                           its warnings, or the reason and the text of the error.
//
//   rope.pairing: PAIRING_HALF               sets a field, or all of a list
//   tensors { role: ROLE_Q }                 sets fields of a message, or adds one to a list
//   positions += 3                           adds to a list; "9 x positions += 3": so often
//   -rope                                    clears a field
//   reposition.from_rope = rope              copies a message
//   fill                                     gives each tensor as many bytes as its shape has
//
// Values are those of Protobuf's text format; "<129 bytes>" is a text of so many, $region the id of
// the connection's memory. A line that begins with a space continues the edit. The reply to a
// prepared request is that of the whole one, or "prepared:" says why there is none.
//
// ROPE_RECORD=FOLDER build/tests/recorder_test writes FOLDER/cases/*.txt with the present answers.
#include <google/protobuf/text_format.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "kernels/dtype/element.h"
#include "proto/error.h"
#include "proto/ipc/ring.h"
#include "proto/wire/error_details.h"
#include "rope/v1/rope_service.grpc.pb.h"
#include "server/embedded/local_service.h"
#include "server/server.h"
#include "tests/conformance/case_file.h"
#include "tests/support/byte_buffer.h"
#include "tests/support/canonical_text.h"
#include "tests/support/matchers.h"
#include "tests/support/prepared_call.h"
#include "tests/support/received_request.h"
#include "tests/support/ring_client.h"
#include "tests/support/rotate_stream.h"
#include "tests/support/temporary_folder.h"

namespace rope::testing {
namespace {

namespace fs = std::filesystem;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::TextFormat;

// --- Messages as text ---

std::unique_ptr<Message> CopyOf(const Message& message) {
  std::unique_ptr<Message> copy(message.New());
  copy->CopyFrom(message);
  return copy;
}

// A field of a message, or one element of a list.
struct Place {
  Message* parent = nullptr;
  const FieldDescriptor* field = nullptr;
  int index = -1;  // -1: the field

  Message* message() const {
    const auto& reflection = *parent->GetReflection();
    return index < 0 ? reflection.MutableMessage(parent, field)
                     : reflection.MutableRepeatedMessage(parent, field, index);
  }
};

// The place of "tensors[0].array.raw", whose outer messages are made.
Place PlaceOf(Message& root, absl::string_view path) {
  Place place;
  for (absl::string_view name : absl::StrSplit(path, '.')) {
    place = {place.field == nullptr ? &root : place.message()};
    const size_t bracket = name.find('[');
    if (bracket != absl::string_view::npos) {
      EXPECT_TRUE(
          absl::SimpleAtoi(name.substr(bracket + 1, name.size() - bracket - 2), &place.index));
      name = name.substr(0, bracket);
    }
    place.field = place.parent->GetDescriptor()->FindFieldByName(std::string(name));
    if (place.field == nullptr) {
      std::printf("no such field: %s\n", std::string(path).c_str());
      std::abort();
    }
  }
  return place;
}

// `text` with "<N bytes>" replaced by N letters.
std::string Expanded(absl::string_view text) {
  const size_t begin = text.find('<');
  const size_t end = text.find(" bytes>");
  int64_t count = 0;
  if (begin == absl::string_view::npos || end == absl::string_view::npos ||
      !absl::SimpleAtoi(text.substr(begin + 1, end - begin - 1), &count)) {
    return std::string(text);
  }
  return absl::StrCat(text.substr(0, begin), std::string(static_cast<size_t>(count), 'x'),
                      Expanded(text.substr(end + 7)));
}

// The elements of a tensor, which every dtype holds exactly.
std::string Elements(const v1::Array& array, int first) {
  int64_t count = 1;
  for (const int64_t length : array.shape()) count *= length;
  std::string raw;
  for (int64_t i = first; i < first + count; ++i) {
    const float value = static_cast<float>(i * 7 % 61) / 8 - 3;
    const uint16_t narrow =
        array.dtype() == v1::DTYPE_FP16 ? kernels::ToFloat16(value) : kernels::ToBFloat16(value);
    std::array<char, sizeof(float)> bytes;
    std::memcpy(bytes.data(), &narrow, sizeof(narrow));
    if (array.dtype() == v1::DTYPE_FP32) std::memcpy(bytes.data(), &value, sizeof(value));
    raw.append(bytes.data(), array.dtype() == v1::DTYPE_FP32 ? 4 : 2);
  }
  return raw;
}

void FillTensors(v1::RotateRequest& request) {
  for (int i = 0; i < request.tensors_size(); ++i) {
    v1::Array& array = *request.mutable_tensors(i)->mutable_array();
    array.clear_numbers();
    array.set_raw(Elements(array, 17 * i));  // other elements in each tensor
  }
}

void EditOnce(absl::string_view line, Message& message) {
  if (line == "fill") return FillTensors(dynamic_cast<v1::RotateRequest&>(message));
  if (absl::ConsumePrefix(&line, "-")) {
    const Place place = PlaceOf(message, line);
    return place.parent->GetReflection()->ClearField(place.parent, place.field);
  }
  const size_t space = line.find(' ');
  absl::string_view path = line.substr(0, space);
  absl::string_view rest = absl::StripLeadingAsciiWhitespace(line.substr(space));
  const bool sets = absl::ConsumeSuffix(&path, ":");
  const Place place = PlaceOf(message, path);
  if (absl::ConsumePrefix(&rest, "= ")) {
    const std::unique_ptr<Message> whole = CopyOf(message);
    return place.message()->CopyFrom(*PlaceOf(*whole, rest).message());
  }
  const bool adds = absl::ConsumePrefix(&rest, "+= ");
  if (sets) place.parent->GetReflection()->ClearField(place.parent, place.field);
  EXPECT_TRUE(TextFormat::MergeFromString(
      absl::StrCat(place.field->name(), sets || adds ? ": " : " ", Expanded(rest)), place.parent))
      << line;
}

// "1024 x EDIT" makes the edit so often.
void Edit(absl::string_view line, Message& message) {
  int64_t times = 1;
  const size_t by = line.find(" x ");
  if (by != absl::string_view::npos && absl::SimpleAtoi(line.substr(0, by), &times)) {
    line = line.substr(by + 3);
  }
  for (int64_t i = 0; i < times; ++i) EditOnce(line, message);
}

// Clears every field that is not on `path`.
void KeepOnly(absl::Span<const std::string> path, Message& message) {
  if (path.empty()) return;
  const auto& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->name() != path[0]) {
      reflection.ClearField(&message, field);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      for (int i = 0; field->is_repeated() && i < reflection.FieldSize(message, field); ++i) {
        KeepOnly(path.subspan(1), *reflection.MutableRepeatedMessage(&message, field, i));
      }
      if (!field->is_repeated()) {
        KeepOnly(path.subspan(1), *reflection.MutableMessage(&message, field));
      }
    }
  }
}

std::string OneLine(const std::string& text) {
  std::vector<absl::string_view> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
    lines.push_back(absl::StripAsciiWhitespace(line));
  }
  return absl::StrJoin(lines, " ");
}

// --- Answers ---

// What one way answered: the text of an error, or the response.
struct Answer {
  std::string error = {};
  std::shared_ptr<const Message> response = nullptr;

  // Without an id and times, which are others in every answer.
  std::string Text() const { return response == nullptr ? error : CanonicalText(*response); }
};

// "INVALID_FIELD tensors: got nothing, want ...". Its parts say the same as its text.
Answer ErrorOf(const v1::Error& error) {
  const auto reason = static_cast<proto::Reason>(error.reason());
  EXPECT_EQ(error.code(), static_cast<int>(proto::CodeOf(reason))) << error.message();
  if (error.field().empty()) {
    EXPECT_THAT(error.message(), Not(HasSubstr(": got ")));
  } else {
    EXPECT_THAT(error.message(), StartsWith(error.field() + ": got " + error.got()));
    EXPECT_THAT(error.message(), HasSubstr(error.want()));
  }
  EXPECT_EQ(error.retry_delay_ms(), 0) << error.message();
  EXPECT_FALSE(error.may_have_executed()) << error.message();
  const std::string name = v1::Reason_Name(error.reason());
  return {absl::StrCat(absl::StripPrefix(name, "REASON_"), " ", error.message())};
}

Answer AnswerOf(const v1::RotateResponse& response) {
  if (response.has_error()) return ErrorOf(response.error());
  return {"", std::make_shared<v1::RotateResponse>(response)};
}

// The facts of a plan that no answer shows.
std::string PlanText(const server::Plan& plan) {
  std::string text = absl::StrCat("plan: tokens ", plan.tokens, ", ", plan.bytes_per_token,
                                  " bytes each, factor ", plan.attention_factor);
  for (const auto* positions : {&plan.positions, &plan.from_positions}) {
    for (const std::vector<int64_t>& axis : *positions) {
      if (axis.empty()) continue;
      absl::StrAppend(&text, positions == &plan.positions ? "; positions " : "; from ",
                      absl::StrJoin(axis, " "));
    }
  }
  for (const server::RowSet& rows : plan.row_sets) {
    absl::StrAppend(&text, "; rows");
    for (const server::TokenRun& run : rows.runs) {
      const auto& last = run.frequencies->inv_freq;
      absl::StrAppend(&text, " ", run.begin, "-", run.end, " of ",
                      last.empty() ? 0 : static_cast<double>(last.back()), " x ",
                      run.frequencies->multiplier, run.frequencies->cacheable ? "" : ", not kept",
                      run.from != nullptr ? ", from others" : "");
    }
  }
  return text;
}

// --- Cases ---

using Stub = v1::RopeService::Stub;

struct Method {
  server::Method number;
  const Message& request;
  const Message& response;
  std::function<grpc::Status(Stub&, const Message&, Message&)> call;
};

template <typename Request, typename Response>
Method MethodOf(server::Method number,
                grpc::Status (Stub::*call)(grpc::ClientContext*, const Request&, Response*)) {
  return {number, Request::default_instance(), Response::default_instance(),
          [call](Stub& stub, const Message& request, Message& response) {
            grpc::ClientContext context;
            return (stub.*call)(&context, dynamic_cast<const Request&>(request),
                                &dynamic_cast<Response&>(response));
          }};
}

const std::map<std::string, Method>& Methods() {
  static const std::map<std::string, Method> methods = {
      {"Rotate", MethodOf(server::Method::kRotate, &Stub::Rotate)},
      {"Describe", MethodOf(server::Method::kDescribe, &Stub::Describe)},
      {"GetTables", MethodOf(server::Method::kGetTables, &Stub::GetTables)},
      {"Prepare", MethodOf(server::Method::kPrepare, &Stub::Prepare)},
      {"ListModels", MethodOf(server::Method::kListModels, &Stub::ListModels)},
  };
  return methods;
}

struct Base {
  const Method* method = nullptr;
  std::unique_ptr<Message> message;
};

// A line that begins with a space continues the edit.
std::vector<std::string> EditsOf(const Paragraph& paragraph) {
  std::vector<std::string> edits;
  for (const std::string& line : paragraph.text) {
    if (line[0] == ' ') {
      absl::StrAppend(&edits.back(), " ", absl::StripAsciiWhitespace(line));
    } else {
      edits.push_back(line);
    }
  }
  return edits;
}

class CasesTest : public ::testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    spdlog::set_level(spdlog::level::off);
    path_ = TemporaryFolder() + "/cases.sock";
    server::ServerOptions options;
    options.device = "cpu";
    options.listen = {"unix:" + path_};
    options.memory_bytes = int64_t{1} << 30;
    options.threads = 2;
    options.shared_memory.enabled = true;
    static const server::SteadyClock clock;
    server_ = server::Server::Create(options, clock).value();
  }
  static void TearDownTestSuite() { server_.reset(); }

  // Makes the message of a paragraph "base NAME METHOD" or "base NAME OTHER".
  void AddBase(const std::vector<std::string>& edits) {
    const std::vector<std::string> words = absl::StrSplit(edits[0], ' ');
    const std::string& of = words.at(2);
    Base base;
    if (bases_.contains(of)) {
      base = {bases_[of].method, CopyOf(*bases_[of].message)};
    } else {
      base.method = &Methods().at(of);
      base.message = CopyOf(base.method->request);
    }
    for (size_t i = 1; i < edits.size(); ++i) MakeEdit(edits[i], *base.message);
    bases_[words[1]] = std::move(base);
    base_ = &bases_[words[1]];
  }
  void TakeBase(const std::string& name) { base_ = &bases_.at(name); }

  std::vector<std::string> AnswersTo(const std::vector<std::string>& edits,
                                     const std::vector<std::string>& shown) {
    const std::unique_ptr<Message> request = CopyOf(*base_->message);
    for (const std::string& edit : edits) MakeEdit(edit, *request);
    const Answer answer = Unary(*base_->method, *request);
    // In this process the only region is its own memory.
    const bool has_region = absl::StrContains(request->ShortDebugString(), "region");
    if (!has_region) {
      EXPECT_EQ(InProcess(*request).Text(), answer.Text()) << "in process";
    }
    const auto* const rotate = dynamic_cast<const v1::RotateRequest*>(request.get());
    if (rotate != nullptr) {
      EXPECT_EQ(Streamed(*rotate).Text(), answer.Text()) << "on a stream";
    }
    if (rotate != nullptr && rotate->ByteSizeLong() <= proto::kRingRequestBytes) {
      const Answer through_ring = ThroughRing(*rotate);
      if (!absl::StrContains(through_ring.error, "reply: got up to")) {  // too large for its slot
        EXPECT_EQ(through_ring.Text(), answer.Text()) << "through the ring";
      }
    }
    if (answer.response == nullptr) {
      return {absl::StrReplaceAll(answer.error, {{RegionId(), "$region"}})};
    }
    std::vector<std::string> lines = TextsOf(*answer.response, shown);
    if (rotate != nullptr) AddPrepared(*rotate, answer, lines);
    if (std::ranges::find(shown, "plan") != shown.end()) {
      lines.push_back(PlanText(*ReceivedRequest(*rotate).Validate(*registry_)));
    }
    return lines;
  }

 private:
  std::string RegionId() const { return absl::StrCat(ring_.id()); }
  void MakeEdit(const std::string& edit, Message& message) const {
    Edit(absl::StrReplaceAll(edit, {{"$region", RegionId()}}), message);
  }

  Answer Unary(const Method& method, const Message& request) {
    std::shared_ptr<Message> response(method.response.New());
    const grpc::Status status = method.call(ring_.stub(), request, *response);
    if (status.ok()) return {"", response};
    const auto error = proto::DecodeStatusDetails(status.error_details());
    EXPECT_TRUE(error.has_value()) << status.error_message();
    return ErrorOf(error.value_or(v1::Error()));
  }
  Answer InProcess(const Message& request) {
    const grpc::Slice slice(request.SerializeAsString());
    grpc::ByteBuffer message(&slice, 1);
    const auto reply =
        service_->Call(base_->method->number, message, absl::Minutes(1), not_cancelled_);
    if (!reply.ok()) {
      return {absl::StrCat(Name(reply.status().detail().reason), " ", reply.status().message())};
    }
    std::shared_ptr<Message> response(base_->method->response.New());
    EXPECT_TRUE(response->ParseFromString(BytesOf(*reply)));
    return {"", response};
  }
  Answer Streamed(const v1::RotateRequest& request) {
    grpc::ClientContext context;
    const auto stream = OpenStream(ring_.stub(), context);
    v1::RotateResponse response;
    EXPECT_TRUE(stream->Write(request) && stream->WritesDone() && stream->Read(&response));
    EXPECT_TRUE(stream->Finish().ok());
    return AnswerOf(response);
  }
  Answer ThroughRing(const v1::RotateRequest& request) {
    v1::RotateResponse response;
    ring_.Rotate(request, 0, &response);
    return AnswerOf(response);
  }

  // "ok HASH", its warnings, and the fields that are to be shown.
  static std::vector<std::string> TextsOf(const Message& response,
                                          const std::vector<std::string>& shown) {
    std::vector<std::string> lines = {absl::StrCat("ok ", HashOf(CanonicalText(response)))};
    const auto& reflection = *response.GetReflection();
    const FieldDescriptor* warnings = response.GetDescriptor()->FindFieldByName("warnings");
    for (int i = 0; warnings != nullptr && i < reflection.FieldSize(response, warnings); ++i) {
      lines.push_back("warning: " + reflection.GetRepeatedString(response, warnings, i));
    }
    for (const std::string& path : shown) {
      if (path == "plan") continue;
      const std::unique_ptr<Message> part = CopyOf(response);
      KeepOnly(std::vector<std::string>(absl::StrSplit(path, '.')), *part);
      const std::string text = OneLine(CanonicalText(*part));
      lines.push_back(text.empty() ? path + ": unset" : text);
    }
    return lines;
  }

  // A call of the prepared request has the same answer, or Prepare refuses the request.
  void AddPrepared(const v1::RotateRequest& request, const Answer& answer,
                   std::vector<std::string>& lines) {
    const Answer prepared = Unary(Methods().at("Prepare"), PrepareOf(request));
    if (prepared.response == nullptr) return lines.push_back("prepared: " + prepared.error);
    const auto& id = dynamic_cast<const v1::PrepareResponse&>(*prepared.response).prepared_id();
    const v1::RotateRequest call = CallOf(request, id);
    EXPECT_EQ(Unary(*base_->method, call).Text(), answer.Text()) << "prepared";
    EXPECT_EQ(Streamed(call).Text(), answer.Text()) << "prepared, on a stream";
  }

  static inline std::unique_ptr<server::Server> server_;
  static inline std::string path_;

  RingClient ring_{path_};
  const std::unique_ptr<server::ModelRegistry> registry_ =
      server::ModelRegistry::Create({}).value();
  const std::shared_ptr<embedded::LocalService> service_ =
      embedded::LocalService::Create({}).value();
  const embedded::LocalService::Cancelled not_cancelled_ =
      std::make_shared<std::atomic<bool>>(false);
  std::map<std::string, Base> bases_;
  const Base* base_ = nullptr;
};

TEST_P(CasesTest, HaveTheirAnswersByEveryWay) {
  using Lines = std::optional<std::vector<std::string>>;
  PlayCases(GetParam(), [this](const Paragraph& paragraph) -> Lines {
    const std::vector<std::string> edits = EditsOf(paragraph);
    const std::string first = edits.empty() ? "" : edits[0];
    if (absl::StartsWith(first, "base ")) {
      AddBase(edits);
      return std::nullopt;
    }
    if (absl::StartsWith(first, "on ")) {
      TakeBase(first.substr(3));
      return std::nullopt;
    }
    return AnswersTo(edits, paragraph.shown);
  });
}

INSTANTIATE_TEST_SUITE_P(Files, CasesTest, ::testing::ValuesIn(CaseFiles("")),
                         [](const auto& file) { return fs::path(file.param).stem().string(); });

}  // namespace
}  // namespace rope::testing
