#include "tests/support/canonical_text.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "proto/version.h"
#include "proto/wire/error_details.h"
#include "proto/wire/message_hash.h"

namespace rope::testing {
namespace {

using google::protobuf::Message;
using google::protobuf::TextFormat;

// Fields that are different in every answer.
constexpr absl::string_view kCleared[] = {"request_id",  "stage_times",    "prepared_id",
                                          "instance_id", "uptime_seconds", "version"};

void Clear(Message& message) {
  const auto& reflection = *message.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const auto* field : fields) {
    // A reading's version is a part of the answer.
    if (std::ranges::find(kCleared, field->name()) != std::end(kCleared) &&
        field->containing_type()->name() != "Reading") {
      reflection.ClearField(&message, field);
    } else if (field->cpp_type() == field->CPPTYPE_MESSAGE && field->is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        Clear(*reflection.MutableRepeatedMessage(&message, field, i));
      }
    } else if (field->cpp_type() == field->CPPTYPE_MESSAGE) {
      Clear(*reflection.MutableMessage(&message, field));
    }
  }
}

class FieldPrinter : public TextFormat::FastFieldValuePrinter {
 public:
  void PrintDouble(double value, TextFormat::BaseTextGenerator* out) const override {
    out->PrintString(absl::StrFormat("%.12g", value));
  }
  void PrintBytes(const std::string& value, TextFormat::BaseTextGenerator* out) const override {
    out->PrintString(absl::StrCat("\"", value.size(), " bytes ", HashOf(value), "\""));
  }
};

bool IsOfNumber(char c) {
  return absl::ascii_isdigit(static_cast<unsigned char>(c)) || absl::StrContains(".eE+-", c);
}

// Numbers of more than 12 digits, with 12.
std::string Rounded(const std::string& text) {
  std::string rounded;
  for (auto at = text.begin(); at != text.end();) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(*at)) ||
        (at != text.begin() && absl::ascii_isalpha(static_cast<unsigned char>(at[-1])))) {
      rounded.push_back(*at++);
      continue;
    }
    const auto end = std::find_if_not(at, text.end(), IsOfNumber);
    const std::string token(at, end);
    double value = 0;
    const bool is_long = token.size() > 12 && absl::StrContains(token, '.');
    rounded += is_long && absl::SimpleAtod(token, &value) ? absl::StrFormat("%.12g", value) : token;
    at = end;
  }
  return rounded;
}

}  // namespace

std::string CanonicalText(const Message& message) {
  const std::unique_ptr<Message> cleared(message.New());
  cleared->CopyFrom(message);
  Clear(*cleared);
  TextFormat::Printer printer;
  printer.SetDefaultFieldValuePrinter(new FieldPrinter);  // owned by `printer`
  printer.SetUseShortRepeatedPrimitives(true);
  std::string text;
  printer.PrintToString(*cleared, &text);
  return text;
}

std::string CanonicalText(const grpc::Status& status, const Message& response) {
  if (status.ok()) return CanonicalText(response);
  const auto error = proto::DecodeStatusDetails(status.error_details());
  return absl::StrCat("code: ", status.error_code(), "\nmessage: ", status.error_message(), "\n",
                      error.has_value() ? CanonicalText(*error) : "no details\n");
}

std::string CanonicalText(std::string output, const std::vector<std::string>& places) {
  for (size_t i = 0; i < places.size(); ++i) {
    output = absl::StrReplaceAll(output, {{places[i], absl::StrCat("<place ", i, ">")}});
  }
  return Rounded(absl::StrReplaceAll(output, {{proto::kVersion, "<version>"}}));
}

std::string HashOf(const std::string& text) {
  return proto::HashId(text).substr(0, 16);
}

}  // namespace rope::testing
