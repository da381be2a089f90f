// The schema keeps what proto/frozen_schema.txt froze, and each kind of break is noticed.
#include "tests/support/frozen_schema.h"

#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rope/v1/options.pb.h"
#include "rope/v1/rope_service.pb.h"
#include "rope/v1/status_details.pb.h"
#include "tests/support/matchers.h"

namespace rope::testing {
namespace {

using ::google::protobuf::DescriptorPool;
using ::google::protobuf::DescriptorProto;
using ::google::protobuf::FieldDescriptorProto;
using ::google::protobuf::FileDescriptor;
using ::google::protobuf::FileDescriptorProto;

constexpr char kFile[] = ROPE_SOURCE_DIR "/proto/frozen_schema.txt";
constexpr char kWriteVariable[] = "ROPE_WRITE_FROZEN_SCHEMA";
constexpr char kWriteCommand[] =
    "ROPE_WRITE_FROZEN_SCHEMA=1 build/tests/unit_proto --gtest_filter='FrozenSchemaTest.*'";
constexpr char kHeader[] =
    "# The schema rope.v1, frozen: README.md, Compatibility. After an addition this command writes "
    "it:\n# ";

std::set<const FileDescriptor*> LinkedFiles() {
  return FilesOfPackage(
      {v1::GetServerInfoRequest::descriptor()->file(), v1::StatusDetails::descriptor()->file()});
}

SchemaLines LinkedLines() {
  SchemaLines lines;
  for (const FileDescriptor* file : LinkedFiles()) lines.merge(LinesOf(*file));
  return lines;
}

std::string FrozenText() {
  std::ostringstream text;
  text << std::ifstream(kFile).rdbuf();
  return text.str();
}

SchemaLines LinesOnlyIn(const SchemaLines& these, const SchemaLines& others) {
  SchemaLines lines;
  std::set_difference(these.begin(), these.end(), others.begin(), others.end(),
                      std::inserter(lines, lines.end()));
  return lines;
}

TEST(FrozenSchemaTest, SchemaKeepsEveryFrozenLine) {
  EXPECT_THAT(BrokenLines(ParseLines(FrozenText()), LinkedLines()), IsEmpty())
      << "proto/README.md, Compatibility, says what may change";
}

TEST(FrozenSchemaTest, FileHasEveryLineOfTheSchema) {
  const SchemaLines now = LinkedLines();
  const std::string text =
      absl::StrCat(kHeader, kWriteCommand, "\n", absl::StrJoin(now, "\n"), "\n");
  const SchemaLines frozen = ParseLines(FrozenText());
  if (std::getenv(kWriteVariable) != nullptr && BrokenLines(frozen, now).empty()) {
    std::ofstream(kFile) << text;
  }
  EXPECT_TRUE(FrozenText() == text)
      << "proto/frozen_schema.txt lacks:\n"
      << absl::StrJoin(LinesOnlyIn(now, frozen), "\n") << "\nand has, but the schema has not:\n"
      << absl::StrJoin(LinesOnlyIn(frozen, now), "\n")
      << "\nthis command writes it, unless a frozen line is broken:\n  " << kWriteCommand;
}

TEST(FrozenSchemaTest, EveryFileOfTheFolderIsInTheText) {
  std::set<std::string> there;
  for (const auto& entry : std::filesystem::directory_iterator(ROPE_SOURCE_DIR "/proto/rope/v1")) {
    there.insert("rope/v1/" + entry.path().filename().string());
  }
  std::set<std::string> covered;
  for (const FileDescriptor* file : LinkedFiles()) covered.insert(file->name());
  EXPECT_EQ(covered, there);
}

// Below: what the comparison notices, shown with changed copies of the linked files.

void CopyWithImports(const FileDescriptor& file, DescriptorPool& pool) {
  for (int i = 0; i < file.dependency_count(); ++i) {
    if (pool.FindFileByName(file.dependency(i)->name()) == nullptr) {
      CopyWithImports(*file.dependency(i), pool);
    }
  }
  FileDescriptorProto copy;
  file.CopyTo(&copy);
  ASSERT_NE(pool.BuildFile(copy), nullptr);
}

using Change = std::function<void(FileDescriptorProto&)>;

// The lines of `file` after a change.
SchemaLines After(const FileDescriptor& file, const Change& change) {
  DescriptorPool pool;
  for (int i = 0; i < file.dependency_count(); ++i) {
    if (pool.FindFileByName(file.dependency(i)->name()) == nullptr) {
      CopyWithImports(*file.dependency(i), pool);
    }
  }
  FileDescriptorProto copy;
  file.CopyTo(&copy);
  change(copy);
  const FileDescriptor* changed = pool.BuildFile(copy);
  EXPECT_NE(changed, nullptr);
  return changed == nullptr ? SchemaLines() : LinesOf(*changed);
}

template <typename Elements>
auto& Named(const std::string& name, Elements& elements) {
  const auto found = std::find_if(elements.begin(), elements.end(),
                                  [&](const auto& element) { return element.name() == name; });
  return found == elements.end() ? *elements.Add() : *found;
}

DescriptorProto& Message(FileDescriptorProto& file, const std::string& name) {
  return Named(name, *file.mutable_message_type());
}
FieldDescriptorProto& Field(FileDescriptorProto& file, const std::string& message,
                            const std::string& name) {
  return Named(name, *Message(file, message).mutable_field());
}
void RemoveField(FileDescriptorProto& file, const std::string& message, const std::string& name) {
  auto& fields = *Message(file, message).mutable_field();
  fields.erase(std::find_if(fields.begin(), fields.end(),
                            [&](const auto& field) { return field.name() == name; }));
}

class SchemaChangeTest : public ::testing::Test {
 protected:
  std::vector<std::string> BrokenBy(const Change& change) {
    return BrokenLines(LinesOf(file_), After(file_, change));
  }

  const FileDescriptor& file_ = *v1::Positions::descriptor()->file();
};

TEST_F(SchemaChangeTest, UnchangedCopyBreaksNothing) {
  EXPECT_EQ(After(file_, [](auto&) {}), LinesOf(file_));
}

TEST_F(SchemaChangeTest, NewFieldMessageAndEnumValueBreakNothing) {
  EXPECT_THAT(BrokenBy([](auto& file) {
                auto* field = Message(file, "Positions").add_field();
                field->set_name("added");
                field->set_number(14);
                field->set_type(FieldDescriptorProto::TYPE_BOOL);
                file.add_message_type()->set_name("Added");
                auto* value = Named("Operation", *file.mutable_enum_type()).add_value();
                value->set_name("OPERATION_ADDED");
                value->set_number(99);
              }),
              IsEmpty());
}

TEST_F(SchemaChangeTest, NumberIsFrozen) {
  EXPECT_THAT(
      BrokenBy([](auto& file) { Field(file, "Positions", "seq_lens").set_number(50); }),
      ElementsAre("field rope.v1.Positions.seq_lens: got \"= 50 repeated packed int64\", want "
                  "\"= 5 repeated packed int64\""));
}

TEST_F(SchemaChangeTest, NameIsFrozenAndTheNewOneIsNamed) {
  EXPECT_THAT(
      BrokenBy([](auto& file) { Field(file, "Positions", "seq_lens").set_name("lengths"); }),
      ElementsAre("field rope.v1.Positions.seq_lens: got none (number 5 is field "
                  "rope.v1.Positions.lengths), want \"= 5 repeated packed int64\""));
}

TEST_F(SchemaChangeTest, FieldIsNotRemoved) {
  EXPECT_THAT(BrokenBy([](auto& file) { RemoveField(file, "Positions", "seq_lens"); }),
              ElementsAre("field rope.v1.Positions.seq_lens: got none, want "
                          "\"= 5 repeated packed int64\""));
}

TEST_F(SchemaChangeTest, FieldDoesNotLeaveItsOneof) {
  EXPECT_THAT(BrokenBy([](auto& file) { Field(file, "Positions", "start").clear_oneof_index(); }),
              ElementsAre("field rope.v1.Positions.start: got \"= 1 int64\", want "
                          "\"= 1 int64 oneof source\""));
}

TEST_F(SchemaChangeTest, FieldDoesNotJoinAOneof) {
  EXPECT_THAT(
      BrokenBy([](auto& file) { Field(file, "Positions", "cu_seqlens").set_oneof_index(0); }),
      ElementsAre("field rope.v1.Positions.cu_seqlens: got \"= 4 rope.v1.Array oneof "
                  "source\", want \"= 4 rope.v1.Array\""));
}

TEST_F(SchemaChangeTest, TypeIsFrozen) {
  EXPECT_THAT(BrokenBy([](auto& file) {
                Field(file, "Positions", "start").set_type(FieldDescriptorProto::TYPE_SINT64);
              }),
              ElementsAre("field rope.v1.Positions.start: got \"= 1 sint64 oneof source\", want "
                          "\"= 1 int64 oneof source\""));
}

TEST_F(SchemaChangeTest, LabelAndPackingAreFrozen) {
  EXPECT_THAT(
      BrokenBy([](auto& file) {
        Field(file, "Positions", "seq_lens").set_label(FieldDescriptorProto::LABEL_OPTIONAL);
      }),
      ElementsAre("field rope.v1.Positions.seq_lens: got \"= 5 int64\", want "
                  "\"= 5 repeated packed int64\""));
  EXPECT_THAT(BrokenBy([](auto& file) {
                Field(file, "Positions", "seq_lens").mutable_options()->set_packed(false);
              }),
              ElementsAre("field rope.v1.Positions.seq_lens: got \"= 5 repeated int64\", want "
                          "\"= 5 repeated packed int64\""));
}

TEST_F(SchemaChangeTest, PresenceIsFrozen) {
  EXPECT_THAT(BrokenBy([](auto& file) {
                auto& field = Field(file, "Positions", "cp_rank");
                field.clear_proto3_optional();
                field.clear_oneof_index();
                Message(file, "Positions").mutable_oneof_decl()->RemoveLast();
              }),
              ElementsAre("field rope.v1.Positions.cp_rank: got \"= 7 int32\", want "
                          "\"= 7 optional int32\""));
}

TEST_F(SchemaChangeTest, JsonNameIsFrozen) {
  EXPECT_THAT(
      BrokenBy([](auto& file) { Field(file, "Positions", "seq_lens").set_json_name("lengths"); }),
      ElementsAre("field rope.v1.Positions.seq_lens: got \"= 5 repeated packed int64 json "
                  "lengths\", want \"= 5 repeated packed int64\""));
}

TEST_F(SchemaChangeTest, PlannedFieldMayBecomeBuiltButNotTheReverse) {
  const Change plan = [](auto& file) {
    Field(file, "Positions", "start").mutable_options()->SetExtension(v1::planned, true);
  };
  EXPECT_THAT(BrokenBy(plan), ElementsAre("field rope.v1.Positions.start: got \"= 1 int64 oneof "
                                          "source planned\", want \"= 1 int64 oneof source\""));
  EXPECT_THAT(BrokenLines(After(file_, plan), LinesOf(file_)), IsEmpty());
}

TEST_F(SchemaChangeTest, EnumValueKeepsNameAndNumber) {
  const std::string value = "enum_value rope.v1.Operation.OPERATION_INVERSE";
  EXPECT_THAT(BrokenBy([](auto& file) {
                auto& operation = Named("Operation", *file.mutable_enum_type());
                Named("OPERATION_INVERSE", *operation.mutable_value()).set_number(70);
              }),
              ElementsAre(value + ": got \"= 70\", want \"= 2\""));
  EXPECT_THAT(BrokenBy([](auto& file) {
                auto& operation = Named("Operation", *file.mutable_enum_type());
                Named("OPERATION_INVERSE", *operation.mutable_value()).set_name("OPERATION_BACK");
              }),
              ElementsAre(value + ": got none (number 2 is enum_value "
                                  "rope.v1.Operation.OPERATION_BACK), want \"= 2\""));
}

TEST_F(SchemaChangeTest, ReservedNumbersAndNamesStayReserved) {
  const SchemaLines frozen = After(file_, [](auto& file) {
    auto* range = Message(file, "Positions").add_reserved_range();
    range->set_start(900);
    range->set_end(903);  // exclusive
    Message(file, "Positions").add_reserved_name("gone");
  });
  EXPECT_THAT(BrokenLines(frozen, LinesOf(file_)),
              ElementsAre("reserved rope.v1.Positions \"gone\": got none, want it",
                          "reserved rope.v1.Positions 900 to 902: got none, want it"));
}

TEST_F(SchemaChangeTest, MessageIsNotRemoved) {
  const SchemaLines frozen =
      After(file_, [](auto& file) { file.add_message_type()->set_name("Added"); });
  EXPECT_THAT(BrokenLines(frozen, LinesOf(file_)),
              ElementsAre("message rope.v1.Added: got none, want it"));
}

TEST(MethodChangeTest, TypesAndStreamingAreFrozen) {
  const FileDescriptor& file = *v1::GetServerInfoRequest::descriptor()->file();
  const SchemaLines changed = After(file, [](auto& copy) {
    auto& methods = *copy.mutable_service(0)->mutable_method();
    Named("Rotate", methods).set_input_type(".rope.v1.DescribeRequest");
    Named("RotateStream", methods).set_client_streaming(false);
    Named("ListModels", methods).set_name("List");
  });
  EXPECT_THAT(
      BrokenLines(LinesOf(file), changed),
      ElementsAre(
          "method rope.v1.RopeService.ListModels: got none, want \"(rope.v1.ListModelsRequest) "
          "returns (rope.v1.ListModelsResponse)\"",
          "method rope.v1.RopeService.Rotate: got \"(rope.v1.DescribeRequest) returns "
          "(rope.v1.RotateResponse)\", want \"(rope.v1.RotateRequest) returns "
          "(rope.v1.RotateResponse)\"",
          "method rope.v1.RopeService.RotateStream: got \"(rope.v1.RotateStreamRequest) "
          "returns (stream rope.v1.RotateStreamResponse)\", want \"(stream "
          "rope.v1.RotateStreamRequest) returns (stream rope.v1.RotateStreamResponse)\""));
}

TEST(FrozenTextTest, CommentsAndEmptyLinesAreNoElements) {
  EXPECT_THAT(ParseLines("# a comment\n\nmessage b.B\nmessage a.A\n"),
              ElementsAre("message a.A", "message b.B"));
}

}  // namespace
}  // namespace rope::testing
