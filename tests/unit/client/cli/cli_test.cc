#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "client/cli/arguments.h"
#include "client/cli/commands.h"
#include "client/cli/golden.h"
#include "client/cli/npy.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/client/fake_prepare.h"
#include "tests/unit/client/fake_server.h"

namespace rope::client {
namespace {

Command TestCommand() {
  return {"test",
          "FILE",
          "A command.",
          {{"text", FlagKind::kText, "TEXT", "Some text."},
           {"integer", FlagKind::kInteger, "N", ""},
           {"number", FlagKind::kNumber, "X", ""},
           {"integers", FlagKind::kIntegers, "0,1", ""},
           {"duration", FlagKind::kDuration, "DURATION", "", /*environment=*/true},
           {"switch", FlagKind::kSwitch, "", ""}}};
}

Result<Arguments> Parse(const std::vector<absl::string_view>& arguments) {
  return Arguments::Parse(arguments, TestCommand());
}

TEST(ArgumentsTest, EveryKindInBothSpellings) {
  ASSERT_OK(arguments, Parse({"--text=a=b", "one", "--integer", "-3", "--number=2.5", "--switch",
                              "--integers=0,-1,2", "--duration=200ms", "-"}));
  EXPECT_EQ(arguments->Text("text"), "a=b");
  EXPECT_EQ(arguments->Integer("integer"), -3);
  EXPECT_EQ(arguments->Number("number"), 2.5);
  EXPECT_THAT(arguments->Integers("integers"), ElementsAre(0, -1, 2));
  EXPECT_EQ(arguments->Duration("duration"), std::chrono::milliseconds(200));
  EXPECT_TRUE(arguments->Has("switch"));
  EXPECT_THAT(arguments->positional(), ElementsAre("one", "-"));
}

TEST(ArgumentsTest, MisuseIsRefusedByName) {
  const std::pair<std::vector<absl::string_view>, std::string> cases[] = {
      {{"--unknown=1"}, "command line: got \"--unknown=1\""},
      {{"--integr=1"}, "did you mean --integer?"},
      {{"--integer=1.5"}, "--integer: got 1.5"},
      {{"--integer="}, "--integer: 1 required N"},
      {{"--integer"}, "--integer: 1 required N"},
      {{"--integer=99999999999999999999"}, "--integer: got 99999999999999999999"},
      {{"--number=nan"}, "--number: got nan"},
      {{"--integers=1,,2"}, "--integers: got 1,,2"},
      {{"--duration=5"}, "--duration: got 5, want a duration"},
      {{"--text=a", "--text=b"}, "--text: At Most 1 required but received 2"},
  };
  for (const auto& [arguments, message] : cases) {
    EXPECT_THAT(Parse(arguments), StatusIs(StatusCode::kInvalidArgument, HasSubstr(message)));
  }
}

TEST(ArgumentsTest, EnvironmentSetsWhatTheCommandLineDoesNot) {
  setenv("ROPE_DURATION", "7s", 1);
  const auto from_environment = Parse({});
  const auto from_both = Parse({"--duration=1s"});
  unsetenv("ROPE_DURATION");
  ASSERT_TRUE(from_environment.ok() && from_both.ok());
  EXPECT_EQ(from_environment->Duration("duration"), std::chrono::seconds(7));
  EXPECT_EQ(from_both->Duration("duration"), std::chrono::seconds(1));
}

struct Outcome {
  int exit_status = 0;
  std::string out;
  std::string err;
};

Outcome Ropectl(const std::vector<absl::string_view>& arguments) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.exit_status = RunRopectl(arguments);
  std::fflush(stdout);
  outcome.out = ::testing::internal::GetCapturedStdout();
  outcome.err = ::testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(CommandsTest, HelpListsEveryCommandAndFlag) {
  EXPECT_EQ(Ropectl({"help"}).exit_status, kExitOk);
  EXPECT_EQ(Ropectl({"--help"}).exit_status, kExitOk);
  for (const Command& command : Commands()) {
    EXPECT_THAT(Ropectl({"help"}).out, HasSubstr(std::string(command.name)));
    const Outcome help = Ropectl({"help", command.name});
    EXPECT_EQ(help.exit_status, kExitOk);
    EXPECT_EQ(Ropectl({command.name, "--help"}).out, help.out);
    for (const Flag& flag : command.flags) {
      EXPECT_THAT(help.out, HasSubstr("--" + std::string(flag.name)));
    }
    EXPECT_EQ(absl::StrContains(help.out, "--target"), (command.asks != Command::Asks::kNobody));
    EXPECT_THAT(help.out, HasSubstr(std::string(command.exits)));
  }
}

TEST(CommandsTest, MisuseHasStatusTwo) {
  const std::pair<std::vector<absl::string_view>, const char*> cases[] = {
      {{}, "usage: ropectl"},
      {{"nope"}, "got the command 'nope'"},
      {{"help", "nope"}, "got the command 'nope'"},
      {{"models", "--layer=1"}, "command line: got \"--layer=1\""},
      {{"model"}, "did you mean models?"},
      {{"models", "--targe=x"}, "did you mean --target?"},
      {{"models", "extra"}, "got \"extra\", want a flag"},
      {{"models", "--timeout=0s"}, "--timeout: got no time"},
      {{"describe"}, "got 0 of them, want exactly one"},
      {{"describe", "--model=a", "--config_id=b"}, "got 2 of them, want exactly one"},
      {{"describe", "--model=a", "--layer=-1"}, "--layer: got -1"},
      {{"describe", "--model=a", "--pairing=both"}, "--pairing: got both"},
      {{"describe", "--model=a", "--plot=x.svg"}, "want `ropeserve plot CONFIG --output=FILE`"},
      {{"diagnose", "--before=q.npy"}, "want `ropeserve diagnose` of the Python package"},
      {{"health", "a", "b"}, "got two services"},
      {{"describe", "a.json", "--model=b"}, "got 2 of them, want exactly one"},
      {{"lint"}, "lint: got no file"},
      {{"lint", "x.json", "--target=y"}, "--target"},
      {{"diff", "a.json"}, "diff: got 1 files, want two"},
      {{"verify"}, "got no file"},
      {{"rotate", "--model=a"}, "--q, --k: got none"},
      {{"reposition", "--model=a"}, "--q, --k: got none"},
      {{"reposition", "--model=a", "--k=a", "--output_k=b", "--layout=SD", "--start=1"},
       "--from_start, --from_starts, --from_positions: got none"},
      {{"reposition", "--model=a", "--k=a", "--output_k=b", "--layout=SD", "--by=1", "--start=1"},
       "--by: got it and a start"},
      {{"tables", "--model=a", "--output=b"}, "--end, --positions: got both or none"},
      {{"tables", "--model=a", "--output=b", "--end=2", "--positions=1"}, "got both or none"},
      {{"tables", "--model=a", "--output=b", "--begin=2", "--end=2"},
       "--begin, --end: got 2 and 2"},
      {{"tables", "--model=a", "--output=b", "--end=2", "--from_positions=1"},
       "--from_positions: got 1 positions, want 2"},
      {{"tables", "--model=a", "--output=b", "--end=2", "--from_model=c"}, "--from_begin"},
      {{"tables", "--model=a", "--output=b", "--end=2", "--dtype=fp8"}, "--dtype: got fp8"},
      {{"tables", "--model=a", "--output=b", "--end=2", "--layout=cos_sin"}, "--output_cos"},
      {{"tables", "--model=a", "--output_cos=b", "--end=2"}, "--output: want FILE.npy"},
  };
  for (const auto& [arguments, message] : cases) {
    const Outcome outcome = Ropectl(arguments);
    EXPECT_EQ(outcome.exit_status, kExitUsage) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
}

TEST(CommandsTest, FailedCallHasStatusOneAndSaysWhy) {
  const Outcome outcome =
      Ropectl({"--target=unix:/nonexistent/rope.sock", "models", "--timeout=100ms"});
  EXPECT_EQ(outcome.exit_status, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("UNAVAILABLE: unix:/nonexistent/rope.sock: "));
}

TEST(CommandsTest, ConfigThatCannotBeReadHasStatusOne) {
  const Outcome outcome = Ropectl({"describe", "--config=/nonexistent/config.json"});
  EXPECT_EQ(outcome.exit_status, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("/nonexistent/config.json: cannot be read (no such file"));
  EXPECT_THAT(Ropectl({"describe", "llama-3.1-8"}).err, HasSubstr("did you mean llama-3.1-8b?"));
  EXPECT_THAT(Ropectl({"describe", "/proc/self/mem"}).err, HasSubstr("(Input/output error)"));
}

TEST(CommandsTest, AMisspeltVariableIsNamed) {
  setenv("ROPE_TARGT", "x", 1);
  EXPECT_THAT(Ropectl({"models"}).err, HasSubstr("warning: ROPE_TARGT: is not read"));
  unsetenv("ROPE_TARGT");
}

class RotateTest : public ::testing::Test {
 protected:
  RotateTest() { server_.OnRotate(EchoTo(sent_)); }

  std::string PathOf(const std::string& name) const { return folder_ + "/" + name + ".npy"; }

  // Returns the exit status; out_ and err_ have the output.
  int Rotate(const std::vector<std::string>& flags) {
    const std::string target = "--target=" + server_.target();
    std::vector<absl::string_view> arguments = {"rotate", target, rope_};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Outcome outcome = Ropectl(arguments);
    out_ = outcome.out;
    err_ = outcome.err;
    return outcome.exit_status;
  }
  // Rotates q.npy, which becomes `q`, to q_out.npy.
  void RotateQ(const std::string& q, std::vector<std::string> flags) {
    ASSERT_TRUE(WriteFile(PathOf("q"), q, "").ok());
    flags.insert(flags.end(), {"--q=" + PathOf("q"), "--output_q=" + PathOf("q_out")});
    ASSERT_EQ(Rotate(flags), kExitOk) << err_;
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
  ASSERT_TRUE(WriteFile(PathOf("k"), k, "").ok());
  RotateQ(q, {"--k=" + PathOf("k"), "--output_k=" + PathOf("k_out"), "--layout=SHD",
              "--positions=7", "--operation=inverse", "--pairing=half"});
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
  RotateQ(q, {"--layout=SD", "--start=7", "--prepare"});
  EXPECT_EQ(ReadFile(PathOf("q_out"), 1000).value(), q);
  EXPECT_THAT(out_, HasSubstr("prepared as prepared-1\n"));
  EXPECT_EQ(prepared.received().positions().start(), 7);
  EXPECT_FALSE(prepared.received().has_rope());
  EXPECT_EQ(prepared.asked().rotate().rope().model(), "m");
  RotateQ(q, {"--layout=SD", "--start=7", "--prepare", "--json"});
  EXPECT_THAT(out_, HasSubstr("\"prepared_id\": \"prepared-1\""));
}

TEST_F(RotateTest, BitsOfBFloat16AreUnsignedIntegers) {
  ASSERT_TRUE(WriteFile(PathOf("b"), NpyHeader("<u2", {1, 2}) + "abcd", "").ok());
  std::vector<std::string> flags = {"--q=" + PathOf("b"), "--output_q=" + PathOf("b_out"),
                                    "--layout=SD", "--start=0"};
  EXPECT_EQ(Rotate(flags), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("npy descr: got <u2"));
  flags.push_back("--dtype=bf16");
  ASSERT_EQ(Rotate(flags), kExitOk) << err_;
  EXPECT_EQ(sent_.tensors(0).array().dtype(), v1::DTYPE_BF16);
}

TEST_F(RotateTest, PrecisionAndSinusoidalTableAreAskedFor) {
  RotateQ(NpyHeader("<f4", {1, 2}) + "12345678",
          {"--layout=SD", "--start=0", "--operation=add_sinusoidal", "--precision=exact"});
  EXPECT_EQ(sent_.operation(), v1::OPERATION_ADD_SINUSOIDAL);
  EXPECT_EQ(sent_.rope().precision(), v1::PRECISION_EXACT);
}

TEST_F(RotateTest, OptionsBesideTheRotationAreSent) {
  ASSERT_TRUE(WriteFile(PathOf("w"), NpyHeader("<f8", {2}) + "1234567812345678", "").ok());
  RotateQ(
      NpyHeader("<f4", {1, 1, 2}) + "12345678",
      {"--layout=SHD", "--start=0", "--norm_q=" + PathOf("w"), "--norm_eps=0.5", "--scale_q=0.25",
       "--output_layout=HSD", "--output_dtype=fp32", "--precision=hf", "--compat=vllm"});
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
  RotateQ(NpyHeader("<f4", {1, 1, 2}) + "12345678",
          {"--layout=SHD", "--start=0", "--output_dtype=fp8_e4m3"});
  EXPECT_EQ(ReadFile(PathOf("q_out"), 1000).value(), NpyHeader("|u1", {1, 1, 2}) + "ab");
}

TEST_F(RotateTest, RowsStandInPlaceOfAModel) {
  ASSERT_TRUE(WriteFile(PathOf("cos"), NpyHeader("<f4", {1, 1}) + "abcd", "").ok());
  ASSERT_TRUE(WriteFile(PathOf("sin"), NpyHeader("<f4", {1, 1}) + "efgh", "").ok());
  rope_ = "--pairing=half";
  RotateQ(NpyHeader("<f4", {1, 1, 2}) + "12345678",
          {"--layout=SHD", "--cos=" + PathOf("cos"), "--sin=" + PathOf("sin")});
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

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// One token and one head of 6 channels, of which 4 rotate; the results are exact in every dtype.
Json SmallCase() {
  return {{"format", "rope-golden-1"},
          {"config", {{"rope_theta", 10000}}},
          {"layer_type", nullptr},
          {"pairing", "half"},
          {"head_dim", 6},
          {"rotary_dim", 4},
          {"num_heads", 1},
          {"num_kv_heads", 0},
          {"num_tokens", 1},
          {"seq_len", 1},
          {"attention_factor", 1.0},
          {"positions", {0}},
          {"q", {1.0, 0.0, 2.0, 0.0, 5.0, 0.0}},
          {"k", Json::array()},
          {"q_out_f64", {1.0, 0.0, 2.0, 0.0, 5.0, 0.0}},
          {"k_out_f64", Json::array()}};
}

GoldenFile Parsed(const Json& json) {
  Result<GoldenFile> golden = ParseGolden(json.dump());
  return std::move(golden).value();
}

// The deviation if the server answers `rotated` for q.
Deviation DeviationOf(const Json& json, const std::vector<double>& rotated, DType dtype) {
  const GoldenFile golden = Parsed(json);
  return Compare(golden, golden.tensors[0], dtype, Store(rotated, dtype).data());
}

TEST(GoldenTest, RatioIsErrorOverTolerance) {
  Json json = SmallCase();
  json["attention_factor"] = 2.0;
  const double tolerance = 1.5e-7 * 2 * (1 + 2);  // channels 0 and 2 form a pair
  json["q_out_f64"][0] = 1.0 + tolerance / 2;
  EXPECT_NEAR(DeviationOf(json, {1, 0, 2, 0, 5, 0}, DType::kFloat32).ratio, 0.5, 1e-6);
}

TEST(GoldenTest, InterleavedPairsNeighbours) {
  Json json = SmallCase();
  json["pairing"] = "interleaved";
  json["q_out_f64"][0] = 1.0 + 1.5e-7;  // the other channel of the pair is 0
  EXPECT_NEAR(DeviationOf(json, {1, 0, 2, 0, 5, 0}, DType::kFloat32).ratio, 1, 1e-6);
}

TEST(GoldenTest, SixteenBitTypesMayBeHalfAUnitOff) {
  Json json = SmallCase();
  const double unit = std::ldexp(1.0, -10);  // the spacing of float16 in [1, 2)
  json["q_out_f64"][0] = 1.0 + unit / 2;
  EXPECT_LE(DeviationOf(json, {1, 0, 2, 0, 5, 0}, DType::kFloat16).ratio, 1);
  json["q_out_f64"][0] = 1.0 + unit * 0.51;
  EXPECT_GT(DeviationOf(json, {1, 0, 2, 0, 5, 0}, DType::kFloat16).ratio, 1);
  EXPECT_LE(DeviationOf(json, {1, 0, 2, 0, 5, 0}, DType::kBFloat16).ratio, 1);  // 8 x the spacing
  json["q_out_f64"][0] = 1.0 + 8 * unit * 0.51;
  EXPECT_GT(DeviationOf(json, {1, 0, 2, 0, 5, 0}, DType::kBFloat16).ratio, 1);
}

TEST(GoldenTest, UnitsOfSmallHalvesStopShrinking) {
  Json json = SmallCase();
  json["q"] = {0.0, 0.0, 0.0, 0.0, 0.0, 0.0};
  json["q_out_f64"] = {std::ldexp(0.49, -24), 0.0, 0.0, 0.0, 0.0, 0.0};
  EXPECT_NEAR(DeviationOf(json, {0, 0, 0, 0, 0, 0}, DType::kFloat16).ratio, 0.98, 1e-9);
  const double subnormal = std::ldexp(1.0, -20);
  json["q_out_f64"][0] = subnormal + std::ldexp(0.49, -24);
  EXPECT_NEAR(DeviationOf(json, {subnormal, 0, 0, 0, 0, 0}, DType::kFloat16).ratio, 0.98, 1e-9);
}

TEST(GoldenTest, ChannelsOutsideTheRotationHaveNoTolerance) {
  for (const DType dtype : kDTypes) {
    Json json = SmallCase();
    json["q_out_f64"][4] = 5.0000000001;
    const Deviation deviation = DeviationOf(json, {1, 0, 2, 0, 5, 0}, dtype);
    EXPECT_EQ(deviation.ratio, std::numeric_limits<double>::infinity());
    EXPECT_THAT(deviation.where, HasSubstr("q[0, 0, 4]: got 5, want 5, tolerance 0"));
  }
}

TEST(GoldenTest, ZeroPairThatMovesIsInfinite) {
  EXPECT_EQ(DeviationOf(SmallCase(), {1, 1e-30, 2, 0, 5, 0}, DType::kFloat32).ratio,
            std::numeric_limits<double>::infinity());
}

TEST(GoldenTest, NotANumberFailsInEveryDType) {
  for (const DType dtype : kDTypes) {
    for (const size_t channel : {0, 3, 5}) {
      std::vector<double> rotated = {1, 0, 2, 0, 5, 0};
      rotated[channel] = std::nan("");
      EXPECT_EQ(DeviationOf(SmallCase(), rotated, dtype).ratio,
                std::numeric_limits<double>::infinity());
    }
    EXPECT_EQ(DeviationOf(SmallCase(), {HUGE_VAL, 0, 2, 0, 5, 0}, dtype).ratio,
              std::numeric_limits<double>::infinity());
  }
}

TEST(GoldenTest, BadFilesAreRefusedByKey) {
  const auto message_for = [](const Json& json) {
    const auto golden = ParseGolden(json.dump());
    EXPECT_EQ(golden.status().code(), StatusCode::kInvalidArgument);
    return golden.status().message();
  };
  const Json small = SmallCase();
  for (const auto& [key, value] : small.items()) {
    Json json = SmallCase();
    json.erase(key);
    EXPECT_THAT(message_for(json), HasSubstr(key + ": got no such key"));
  }
  const std::pair<const char*, Json> changes[] = {{"format", "rope-golden-2"},
                                                  {"pairing", "both"},
                                                  {"head_dim", 0},
                                                  {"rotary_dim", 3},
                                                  {"rotary_dim", 8},
                                                  {"num_tokens", -1},
                                                  {"num_tokens", 1.5},
                                                  {"num_heads", 1LL << 40},
                                                  {"positions", {0, 1}},
                                                  {"positions", {{0}, {1}}},
                                                  {"positions", {0.5}},
                                                  {"positions", "0"},
                                                  {"q", {1.0}},
                                                  {"q", {1, 2, 3, 4, 5, nullptr}},
                                                  {"q_out_f64", Json::array()},
                                                  {"attention_factor", -1},
                                                  {"attention_factor", "1"},
                                                  {"layer_type", 3},
                                                  {"seq_len", 0}};
  for (const auto& [key, value] : changes) {
    Json json = SmallCase();
    json[key] = value;
    EXPECT_THAT(message_for(json), HasSubstr(std::string(key) + ": got ")) << json;
  }
  for (const char* text : {"", "{", "[]", "{\"q\": NaN}", "{\"q\": 1e999}"}) {
    EXPECT_FALSE(ParseGolden(text).ok()) << text;
  }
}

// A file of version 1.0 with the given header text.
std::string FileWith(const std::string& header, const std::string& data) {
  std::string file("\x93NUMPY\x01\x00", 8);
  file.push_back(static_cast<char>(header.size() & 0xff));
  file.push_back(static_cast<char>(header.size() >> 8));
  return file + header + data;
}

std::string MessageFor(const std::string& file) {
  const auto array = ParseNpy(file);
  EXPECT_EQ(array.status().code(), StatusCode::kInvalidArgument);
  return array.status().message();
}

TEST(NpyTest, WhatIsWrittenIsParsed) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{}, {3}, {2, 0, 4}, {5, 2, 8}}) {
    int64_t count = 1;
    for (const int64_t length : shape) count *= length;
    const std::string data(static_cast<size_t>(count) * 4, 'x');
    const std::string header = NpyHeader("<f4", shape);
    EXPECT_EQ(header.size() % 64, 0u);
    const std::string file = header + data;
    ASSERT_OK(array, ParseNpy(file));
    EXPECT_EQ(array->descr, "<f4");
    EXPECT_EQ(array->shape, shape);
    EXPECT_EQ(std::string(array->data), data);
  }
}

// The bytes that numpy.save writes for arange(3, dtype=float16).
TEST(NpyTest, FileOfNumpyIsParsed) {
  std::string header = "{'descr': '<f2', 'fortran_order': False, 'shape': (3,), }";
  header.resize(117, ' ');
  header.push_back('\n');
  const std::string file = FileWith(header, std::string("\x00\x00\x00\x3c\x00\x40", 6));
  ASSERT_OK(array, ParseNpy(file));
  EXPECT_EQ(array->descr, "<f2");
  EXPECT_THAT(array->shape, ElementsAre(3));
}

TEST(NpyTest, EveryTruncationIsRefused) {
  const std::string file = NpyHeader("<f4", {2, 2}) + std::string(16, 'x');
  ASSERT_TRUE(ParseNpy(file).ok());
  for (size_t bytes = 0; bytes < file.size(); ++bytes) {
    EXPECT_FALSE(ParseNpy(absl::string_view(file).substr(0, bytes)).ok()) << bytes;
  }
}

TEST(NpyTest, BadFilesAreRefusedByName) {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }";
  EXPECT_THAT(MessageFor("not numpy at all"), HasSubstr("npy file: "));
  EXPECT_THAT(MessageFor(FileWith(good, "abcde")), HasSubstr("npy data: got 5 bytes, want 4"));
  EXPECT_THAT(MessageFor(FileWith("{'descr': '<f4', 'fortran_order': True, 'shape': ()}", "abcd")),
              HasSubstr("npy fortran_order: got True"));
  EXPECT_THAT(MessageFor(FileWith("{'descr': '>f4', 'fortran_order': False, 'shape': ()}", "abcd")),
              HasSubstr("npy descr: got >f4"));
  EXPECT_THAT(MessageFor(FileWith("{'descr': '<f4', 'fortran_order': False, 'shape': "
                                  "(4611686018427387904, 4)}",
                                  "")),
              HasSubstr("npy shape: "));
  std::string version = FileWith(good, "abcd");
  version[6] = 9;
  EXPECT_THAT(MessageFor(version), HasSubstr("npy version: got 9"));
}

TEST(NpyTest, BadHeadersAreRefused) {
  for (const char* header :
       {"", "{", "{}", "{'descr': '<f4'}", "{'descr': [('a', '<f4')]}", "{'shape': (1", "{'shape'",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': ()} more",
        "{'descr': '<f4', 'fortran_order': Maybe, 'shape': ()}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (), 'other': ()}"}) {
    EXPECT_THAT(MessageFor(FileWith(header, "abcd")), HasSubstr("npy header: ")) << header;
  }
}

}  // namespace
}  // namespace rope::client
