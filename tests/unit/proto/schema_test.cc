// The schema keeps what proto/frozen_schema.txt froze; rope.protoset, which the build writes, is
// the whole of it, with its comments.
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "rope/v1/rope_service.pb.h"
#include "rope/v1/status_details.pb.h"
#include "tests/support/frozen_schema.h"
#include "tests/support/matchers.h"

namespace rope::testing {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::DescriptorPool;
using ::google::protobuf::FieldDescriptorProto;
using ::google::protobuf::FileDescriptor;
using ::google::protobuf::FileDescriptorProto;
using ::google::protobuf::FileDescriptorSet;
using ::google::protobuf::ServiceDescriptor;
using ::google::protobuf::SourceLocation;

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

SchemaLines FrozenLines() {
  SchemaLines lines;
  for (const absl::string_view line : absl::StrSplit(FrozenText(), '\n', absl::SkipWhitespace())) {
    if (!absl::StartsWith(line, "#")) lines.insert(std::string(line));
  }
  return lines;
}

SchemaLines LinesOnlyIn(const SchemaLines& these, const SchemaLines& others) {
  SchemaLines lines;
  std::set_difference(these.begin(), these.end(), others.begin(), others.end(),
                      std::inserter(lines, lines.end()));
  return lines;
}

// The frozen lines that the schema has no more. A planned field may have become built.
SchemaLines BrokenLines(const SchemaLines& frozen, const SchemaLines& now) {
  SchemaLines broken;
  for (const std::string& line : LinesOnlyIn(frozen, now)) {
    if (now.count(std::string(absl::StripSuffix(line, " planned"))) == 0) broken.insert(line);
  }
  return broken;
}

TEST(FrozenSchemaTest, SchemaKeepsEveryFrozenLine) {
  EXPECT_THAT(BrokenLines(FrozenLines(), LinkedLines()), IsEmpty())
      << "proto/README.md, Compatibility, says what may change; new are:\n"
      << absl::StrJoin(LinesOnlyIn(LinkedLines(), FrozenLines()), "\n");
}

TEST(FrozenSchemaTest, FileHasEveryLineOfTheSchema) {
  const SchemaLines now = LinkedLines();
  const std::string text =
      absl::StrCat(kHeader, kWriteCommand, "\n", absl::StrJoin(now, "\n"), "\n");
  const SchemaLines frozen = FrozenLines();
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

TEST(FrozenSchemaTest, PlannedFieldMayBecomeBuiltButNotTheReverse) {
  const SchemaLines planned = {"field a.B.c = 1 bool planned"};
  const SchemaLines built = {"field a.B.c = 1 bool"};
  EXPECT_THAT(BrokenLines(planned, built), IsEmpty());
  EXPECT_EQ(BrokenLines(built, planned), built);
}

// No field of the schema has another.
TEST(FrozenSchemaTest, JsonNameIsInTheLine) {
  FileDescriptorProto file;
  file.set_name("a.proto");
  file.set_syntax("proto3");
  file.add_message_type()->set_name("B");
  FieldDescriptorProto& field = *file.mutable_message_type(0)->add_field();
  field.set_name("c");
  field.set_number(1);
  field.set_label(FieldDescriptorProto::LABEL_OPTIONAL);
  field.set_type(FieldDescriptorProto::TYPE_BOOL);
  field.set_json_name("d");
  DescriptorPool pool;
  EXPECT_THAT(LinesOf(*pool.BuildFile(file)),
              ElementsAre("field B.c = 1 bool json d", "message B"));
}

class ProtosetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(ROPE_BINARY_DIR "/rope.protoset", std::ios::binary);
    ASSERT_TRUE(set_.ParseFromIstream(&file));
    // Every file follows the files that it imports, so a pool takes them one by one.
    for (const FileDescriptorProto& each : set_.file()) {
      ASSERT_NE(pool_.BuildFile(each), nullptr) << each.name();
    }
  }

  FileDescriptorSet set_;
  DescriptorPool pool_;
};

TEST_F(ProtosetTest, HasTheSchemaThatIsLinkedAndNoHealth) {
  const auto* linked = v1::GetServerInfoRequest::descriptor()->file();
  for (const auto* file : FilesOfPackage({linked})) {
    const auto* read = pool_.FindFileByName(file->name());
    ASSERT_NE(read, nullptr) << file->name();
    EXPECT_EQ(LinesOf(*read), LinesOf(*file));
  }
  EXPECT_NE(pool_.FindFileByName("rope/v1/status_details.proto"), nullptr);
  EXPECT_EQ(pool_.FindFileByName("grpc/health/v1/health.proto"), nullptr);
}

TEST_F(ProtosetTest, HasTheCommentsOfMessagesFieldsAndMethods) {
  const Descriptor* positions = pool_.FindMessageTypeByName("rope.v1.Positions");
  ASSERT_NE(positions, nullptr);
  SourceLocation place;
  ASSERT_TRUE(positions->GetSourceLocation(&place));
  EXPECT_THAT(place.leading_comments, StartsWith(" Positions of the tokens"));
  ASSERT_TRUE(positions->FindFieldByName("starts")->GetSourceLocation(&place));
  EXPECT_THAT(place.leading_comments, StartsWith(" Position of the first token of each sequence"));
  const ServiceDescriptor* service = pool_.FindServiceByName("rope.v1.RopeService");
  ASSERT_NE(service, nullptr);
  for (int i = 0; i < service->method_count(); ++i) {
    ASSERT_TRUE(service->method(i)->GetSourceLocation(&place));
    EXPECT_NE(place.leading_comments, "") << service->method(i)->name();
  }
}

}  // namespace
}  // namespace rope::testing
