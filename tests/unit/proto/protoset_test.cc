// rope.protoset, which the build writes: the whole schema, nothing missing, with its comments.
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <fstream>

#include "rope/v1/rope_service.pb.h"
#include "tests/support/frozen_schema.h"
#include "tests/support/matchers.h"

namespace rope::testing {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::DescriptorPool;
using ::google::protobuf::FileDescriptorProto;
using ::google::protobuf::FileDescriptorSet;
using ::google::protobuf::ServiceDescriptor;
using ::google::protobuf::SourceLocation;

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
