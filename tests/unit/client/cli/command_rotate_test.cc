#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/files.h"
#include "client/cli/npy.h"
#include "tests/unit/client/fake_server.h"

namespace rope::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RotateTest : public ::testing::Test {
 protected:
  RotateTest() {
    server_.OnRotate([this](grpc::CallbackServerContext& context, const std::string& request,
                            std::string& reply) {
      if (!sent_.ParseFromString(request)) return grpc::Status::CANCELLED;
      return Echo(context, request, reply);
    });
  }

  static std::string PathOf(const std::string& name) {
    return ::testing::TempDir() + "/rotate_test_" + name + ".npy";
  }

  // The exit status; what was printed is in out_ and err_.
  int Rotate(const std::vector<std::string>& flags) {
    const std::string target = "--target=" + server_.target();
    std::vector<absl::string_view> arguments = {"rotate", target, "--model=m"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int exit_status = RunRopectl(arguments);
    out_ = ::testing::internal::GetCapturedStdout();
    err_ = ::testing::internal::GetCapturedStderr();
    return exit_status;
  }

  FakeServer server_;
  v1::RotateRequest sent_;
  std::string out_;
  std::string err_;
};

TEST_F(RotateTest, FilesGoThroughTheServer) {
  const std::string q = NpyHeader("<f2", {1, 2, 2}) + "abcdefgh";
  const std::string k = NpyHeader("<f4", {1, 1, 2}) + "12345678";
  ASSERT_TRUE(WriteFile(PathOf("q"), q, "").ok());
  ASSERT_TRUE(WriteFile(PathOf("k"), k, "").ok());
  ASSERT_EQ(Rotate({"--q=" + PathOf("q"), "--output_q=" + PathOf("q_out"), "--k=" + PathOf("k"),
                    "--output_k=" + PathOf("k_out"), "--layout=SHD", "--positions=7",
                    "--operation=inverse", "--pairing=half"}),
            kExitOk)
      << err_;
  EXPECT_EQ(ReadFile(PathOf("q_out"), 1000).value(), q);
  EXPECT_EQ(ReadFile(PathOf("k_out"), 1000).value(), k);
  EXPECT_THAT(out_, HasSubstr("rotated on fake"));
  EXPECT_EQ(sent_.rope().model(), "m");
  EXPECT_EQ(sent_.rope().pairing(), v1::PAIRING_HALF);
  EXPECT_EQ(sent_.operation(), v1::OPERATION_INVERSE);
  EXPECT_FALSE(sent_.positions().has_start());
  EXPECT_THAT(sent_.positions().position_ids().shape(), ElementsAre(1));
  ASSERT_EQ(sent_.tensors_size(), 2);
  EXPECT_EQ(sent_.tensors(0).array().dtype(), v1::DTYPE_FP16);
  EXPECT_EQ(sent_.tensors(0).layout(), "SHD");
  EXPECT_THAT(sent_.tensors(0).array().shape(), ElementsAre(1, 2, 2));
  EXPECT_EQ(sent_.tensors(1).array().dtype(), v1::DTYPE_FP32);
}

TEST_F(RotateTest, BitsOfBFloat16AreUnsignedIntegers) {
  ASSERT_TRUE(WriteFile(PathOf("b"), NpyHeader("<u2", {1, 2}) + "abcd", "").ok());
  const std::vector<std::string> flags = {"--q=" + PathOf("b"), "--output_q=" + PathOf("b_out"),
                                          "--layout=SD", "--start=0"};
  EXPECT_EQ(Rotate(flags), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("npy descr: got <u2"));
  std::vector<std::string> with_dtype = flags;
  with_dtype.push_back("--dtype=bf16");
  ASSERT_EQ(Rotate(with_dtype), kExitOk) << err_;
  EXPECT_EQ(sent_.tensors(0).array().dtype(), v1::DTYPE_BF16);
}

TEST_F(RotateTest, PrecisionAndSinusoidalTableAreAskedFor) {
  ASSERT_TRUE(WriteFile(PathOf("x"), NpyHeader("<f4", {1, 2}) + "12345678", "").ok());
  ASSERT_EQ(Rotate({"--q=" + PathOf("x"), "--output_q=" + PathOf("x_out"), "--layout=SD",
                    "--start=0", "--operation=add_sinusoidal", "--precision=exact"}),
            kExitOk)
      << err_;
  EXPECT_EQ(sent_.operation(), v1::OPERATION_ADD_SINUSOIDAL);
  EXPECT_EQ(sent_.rope().precision(), v1::PRECISION_EXACT);
  ASSERT_EQ(Rotate({"--q=" + PathOf("x"), "--output_q=" + PathOf("x_out"), "--layout=SD",
                    "--start=0", "--precision=hf"}),
            kExitOk)
      << err_;
  EXPECT_EQ(sent_.rope().precision(), v1::PRECISION_HF);
  EXPECT_EQ(Rotate({"--q=a.npy", "--output_q=b.npy", "--layout=SD", "--precision=double"}),
            kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--precision: got double, want exact or hf"));
}

TEST_F(RotateTest, MisuseIsRefusedBeforeTheServerIsAsked) {
  EXPECT_EQ(Rotate({"--q=a.npy", "--layout=SD"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--q, --output_q: got one, want both"));
  EXPECT_EQ(Rotate({"--q=a.npy", "--output_q=b.npy"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--layout: got nothing"));
  EXPECT_EQ(Rotate({"--q=a.npy", "--output_q=b.npy", "--layout=SD", "--operation=turn"}),
            kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--operation: got turn"));
  EXPECT_EQ(Rotate({"--q=a.npy", "--output_q=b.npy", "--layout=SD", "--dtype=fp8"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--dtype: got fp8"));
  EXPECT_EQ(server_.rotate_calls(), 0);
}

}  // namespace
}  // namespace rope::client
