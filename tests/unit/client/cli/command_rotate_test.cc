#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/cli/arguments.h"
#include "client/cli/commands.h"
#include "client/cli/npy.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/client/fake_prepare.h"
#include "tests/unit/client/fake_server.h"

namespace rope::client {
namespace {

class RotateTest : public ::testing::Test {
 protected:
  RotateTest() {
    server_.OnRotate([this](grpc::CallbackServerContext& context, const std::string& request,
                            std::string& reply) {
      if (!sent_.ParseFromString(request)) return grpc::Status::CANCELLED;
      return Echo(context, request, reply);
    });
  }

  std::string PathOf(const std::string& name) const { return folder_ + "/" + name + ".npy"; }

  // Returns the exit status; out_ and err_ have the output.
  int Rotate(const std::vector<std::string>& flags) {
    const std::string target = "--target=" + server_.target();
    std::vector<absl::string_view> arguments = {"rotate", target, rope_};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int exit_status = RunRopectl(arguments);
    out_ = ::testing::internal::GetCapturedStdout();
    err_ = ::testing::internal::GetCapturedStderr();
    return exit_status;
  }

  const std::string folder_ = rope::testing::TemporaryFolder();
  v1::RotateRequest sent_;  // set by the server's handler
  FakeServer server_;
  std::string rope_ = "--model=m";
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

TEST_F(RotateTest, PrepareSendsTheValuesWithTheIdAndPrintsIt) {
  FakePrepare prepared(server_);
  const std::string q = NpyHeader("<f4", {1, 2}) + "12345678";
  ASSERT_TRUE(WriteFile(PathOf("q"), q, "").ok());
  const std::vector<std::string> flags = {"--q=" + PathOf("q"), "--output_q=" + PathOf("q_out"),
                                          "--layout=SD", "--start=7", "--prepare"};
  ASSERT_EQ(Rotate(flags), kExitOk) << err_;
  EXPECT_EQ(ReadFile(PathOf("q_out"), 1000).value(), q);
  EXPECT_THAT(out_, HasSubstr("prepared as prepared-1\n"));
  EXPECT_EQ(prepared.received().positions().start(), 7);
  EXPECT_FALSE(prepared.received().has_rope());
  EXPECT_EQ(prepared.asked().rotate().rope().model(), "m");
  std::vector<std::string> json = flags;
  json.push_back("--json");
  ASSERT_EQ(Rotate(json), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("\"prepared_id\": \"prepared-1\""));
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
}

TEST_F(RotateTest, OptionsBesideTheRotationAreSent) {
  ASSERT_TRUE(WriteFile(PathOf("q"), NpyHeader("<f4", {1, 1, 2}) + "12345678", "").ok());
  ASSERT_TRUE(WriteFile(PathOf("w"), NpyHeader("<f8", {2}) + "1234567812345678", "").ok());
  ASSERT_EQ(
      Rotate({"--q=" + PathOf("q"), "--output_q=" + PathOf("q_out"), "--layout=SHD", "--start=0",
              "--norm_q=" + PathOf("w"), "--norm_eps=0.5", "--scale_q=0.25", "--output_layout=HSD",
              "--output_dtype=fp32", "--precision=hf", "--compat=vllm"}),
      kExitOk)
      << err_;
  EXPECT_EQ(sent_.rope().precision(), v1::PRECISION_HF);
  EXPECT_EQ(sent_.rope().compat(), v1::COMPAT_VLLM);
  EXPECT_EQ(sent_.output().dtype(), v1::DTYPE_FP32);
  EXPECT_THAT(sent_.output().layouts(), ElementsAre("HSD"));
  const v1::Tensor& tensor = sent_.tensors(0);
  EXPECT_EQ(tensor.scale(), 0.25);
  EXPECT_EQ(tensor.norm().eps(), 0.5);
  EXPECT_EQ(tensor.norm().weight().dtype(), v1::DTYPE_FP64);
  EXPECT_EQ(tensor.norm().weight().raw(), "1234567812345678");
}

TEST_F(RotateTest, EightBitOutputIsWrittenAsBytes) {
  server_.OnRotate([](grpc::CallbackServerContext&, const std::string&, std::string& reply) {
    v1::RotateResponse response;
    v1::Array& array = *response.add_tensors()->mutable_array();
    array.set_dtype(v1::DTYPE_FP8_E4M3);
    for (const int64_t length : {1, 1, 2}) array.add_shape(length);
    array.set_raw("ab");
    reply = response.SerializeAsString();
    return grpc::Status::OK;
  });
  ASSERT_TRUE(WriteFile(PathOf("q"), NpyHeader("<f4", {1, 1, 2}) + "12345678", "").ok());
  ASSERT_EQ(Rotate({"--q=" + PathOf("q"), "--output_q=" + PathOf("q_out"), "--layout=SHD",
                    "--start=0", "--output_dtype=fp8_e4m3"}),
            kExitOk)
      << err_;
  EXPECT_EQ(ReadFile(PathOf("q_out"), 1000).value(), NpyHeader("|u1", {1, 1, 2}) + "ab");
}

TEST_F(RotateTest, RowsStandInPlaceOfAModel) {
  ASSERT_TRUE(WriteFile(PathOf("q"), NpyHeader("<f4", {1, 1, 2}) + "12345678", "").ok());
  ASSERT_TRUE(WriteFile(PathOf("cos"), NpyHeader("<f4", {1, 1}) + "abcd", "").ok());
  ASSERT_TRUE(WriteFile(PathOf("sin"), NpyHeader("<f4", {1, 1}) + "efgh", "").ok());
  rope_ = "--pairing=half";
  ASSERT_EQ(Rotate({"--q=" + PathOf("q"), "--output_q=" + PathOf("q_out"), "--layout=SHD",
                    "--cos=" + PathOf("cos"), "--sin=" + PathOf("sin")}),
            kExitOk)
      << err_;
  EXPECT_EQ(sent_.rope().model(), "");
  EXPECT_EQ(sent_.rope().pairing(), v1::PAIRING_HALF);
  EXPECT_EQ(sent_.rows().cos().raw(), "abcd");
  EXPECT_EQ(sent_.rows().sin().raw(), "efgh");
  EXPECT_FALSE(sent_.has_positions());
}

TEST_F(RotateTest, MisuseIsRefusedBeforeTheServerIsAsked) {
  EXPECT_EQ(Rotate({"--q=a.npy", "--layout=SD"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--q, --output_q: got one, want both"));
  EXPECT_EQ(Rotate({"--q=a.npy", "--output_q=b.npy"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--layout: got nothing"));
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--operation=turn"}, "--operation: got turn"},
      {{"--dtype=fp8"}, "--dtype: got fp8"},
      {{"--cos=c.npy"}, "--cos, --sin: got one, want both"},
      {{"--cos=c", "--sin=s"}, "--cos: got it and --model"},
      {{"--norm_k=w.npy"}, "--norm_k: got it without --k"},
      {{"--output_dtype=int4"},
       "--output_dtype: got int4, want one of fp32, fp16, bf16, fp8_e4m3, fp8_e5m2"},
      {{"--precision="}, "--precision: 1 required exact|hf"},
      {{"--precision=double"}, "--precision: got double, want one of exact, hf"},
  };
  for (auto [flags, error] : cases) {
    flags.insert(flags.begin(), {"--q=a.npy", "--output_q=b.npy", "--layout=SD"});
    EXPECT_EQ(Rotate(flags), kExitUsage) << error;
    EXPECT_THAT(err_, HasSubstr(error));
  }
  EXPECT_EQ(server_.rotate_calls(), 0);
}

}  // namespace
}  // namespace rope::client
