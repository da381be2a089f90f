#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "kernels/config/config_json.h"
#include "kernels/describe.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/identity/key_identity.h"
#include "kernels/tables/derived_rows.h"
#include "kernels/tables/table_cache.h"
#include "tests/conformance/implementations.h"
#include "tests/conformance/rotation.h"
#include "tests/support/golden_reader.h"
#include "tests/support/status_matchers.h"

namespace rope::testing {
namespace {

using kernels::DType;
using kernels::LayerConfig;
using kernels::Pairing;
using kernels::ResolvedRope;

// Every golden file over every backend, instruction set and dtype, from its config.json text to
// rotated numbers. Prints the largest measured error and the largest error / tolerance of each
// combination.

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

struct Worst {
  double error = 0;
  double ratio = 0;  // error / tolerance; 0/0 = 0, x/0 and NaN are infinite
  std::string where = "nothing";

  void Add(double got, double want, double tolerance, const std::string& name) {
    const double off = std::fabs(got - want);
    double value = off == 0 ? 0 : off / tolerance;
    if (std::isnan(value)) value = HUGE_VAL;
    error = std::max(error, off);
    if (value <= ratio) return;
    ratio = value;
    where = name;
  }
};

// A resolved golden file with the rows of its tokens.
struct Prepared {
  GoldenCase golden;
  kernels::PairGeometry geometry;
  kernels::TokenRows rows;
};

void Prepare(const std::string& path, kernels::TableCache& tables, Prepared& result) {
  auto golden = ReadGoldenFile(path);
  ASSERT_THAT(golden, IsOk()) << path;
  result.golden = *std::move(golden);
  const GoldenCase& g = result.golden;
  const auto model = kernels::ModelConfig::Parse(g.config);
  ASSERT_THAT(model, IsOk()) << path;
  kernels::LayerChoice choice;
  choice.layer_type = g.layer_type;
  const auto layer = model->Layer(choice);
  ASSERT_THAT(layer, IsOk()) << path;
  const auto resolved = kernels::Resolve(layer->config, g.head_dim);
  ASSERT_THAT(resolved, IsOk()) << path;
  const auto frequencies = (*resolved)->ForSeqLen(g.seq_len, kernels::Multiplier::kAttentionFactor);
  result.geometry.pairing =
      g.pairing == "half" ? kernels::Pairing::kHalf : kernels::Pairing::kInterleaved;
  result.geometry.pairs = static_cast<int64_t>(frequencies->inv_freq.size());
  result.geometry.partner = (*resolved)->rotary_dim() / 2;
  if (g.positions.size() == 3) {
    const std::vector<absl::Span<const int64_t>> axes(g.positions.begin(), g.positions.end());
    int64_t budget = std::numeric_limits<int64_t>::max();
    ASSERT_THAT(kernels::AppendMropeRows(tables, *frequencies, *(*resolved)->config().mrope, axes,
                                         budget, result.rows),
                IsOk());
  } else {
    ASSERT_THAT(tables.AppendRows(*frequencies, g.positions[0], result.rows), IsOk());
  }
}

// Rotates one tensor [T][heads][D] in `dtype` and compares the result with the exact answer.
void CheckTensor(kernels::Backend& backend, const Prepared& prepared, DType dtype,
                 const std::vector<float>& input, const std::vector<double>& exact, Worst& worst) {
  const GoldenCase& g = prepared.golden;
  const auto size = static_cast<size_t>(kernels::ElementBytes(dtype));
  const int64_t heads = static_cast<int64_t>(input.size()) / (g.num_tokens * g.head_dim);
  std::vector<uint8_t> in(input.size() * size);
  std::vector<uint8_t> out(in.size());
  for (size_t i = 0; i < input.size(); ++i) WriteElement(input[i], dtype, &in[i * size]);
  kernels::RotateJob job;
  job.input = in.data();
  job.output = out.data();
  job.input_strides = job.output_strides = {heads * g.head_dim, g.head_dim};
  job.tokens = g.num_tokens;
  job.heads = heads;
  job.head_dim = g.head_dim;
  job.dtype = dtype;
  job.geometry = prepared.geometry;
  job.rows = prepared.rows.rows;
  ASSERT_THAT(backend.Rotate({&job, 1}), IsOk());
  const int64_t half = g.rotary_dim / 2;
  const bool interleaved = job.geometry.pairing == kernels::Pairing::kInterleaved;
  for (size_t i = 0; i < input.size(); ++i) {
    const auto channel = static_cast<int64_t>(i) % g.head_dim;
    double tolerance = 0;
    if (channel < g.rotary_dim) {
      const bool first = interleaved ? channel % 2 == 0 : channel < half;
      const size_t distance = interleaved ? 1 : static_cast<size_t>(half);
      const double a = input[first ? i : i - distance];
      const double b = input[first ? i + distance : i];
      tolerance = Tolerance(exact[i], a, b, g.attention_factor, dtype);
    }
    worst.Add(ReadElement(&out[i * size], dtype), exact[i], tolerance,
              g.name + " channel " + std::to_string(channel));
  }
}

class GoldenTest : public ::testing::TestWithParam<Implementation> {};

TEST_P(GoldenTest, EveryFileIsWithinToleranceInEveryDType) {
  const std::vector<std::string> files = GoldenFiles();
  ASSERT_GE(files.size(), 28u);
  const auto backend = GetParam().make({.threads = 1});
  kernels::TableCache tables(int64_t{1} << 24);
  Worst worst[3];
  for (const std::string& file : files) {
    Prepared prepared;
    ASSERT_NO_FATAL_FAILURE(Prepare(file, tables, prepared));
    const GoldenCase& g = prepared.golden;
    for (size_t i = 0; i < 3; ++i) {
      CheckTensor(*backend, prepared, kDTypes[i], g.q, g.q_out_f64, worst[i]);
      CheckTensor(*backend, prepared, kDTypes[i], g.k, g.k_out_f64, worst[i]);
    }
  }
  std::printf(
      "measured: %s over %zu golden files: largest error fp32 %.2g, fp16 %.2g, bf16 %.2g; "
      "of its tolerance %.4f, %.4f, %.4f\n",
      GetParam().name.c_str(), files.size(), worst[0].error, worst[1].error, worst[2].error,
      worst[0].ratio, worst[1].ratio, worst[2].ratio);
  for (const Worst& dtype : worst) {
    EXPECT_LE(dtype.ratio, 1) << dtype.where;
    EXPECT_GT(dtype.ratio, 0) << "nothing was compared";
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTest, ::testing::ValuesIn(Implementations()),
                         ImplementationName);

// The golden files of tests/peers: for each rotary class of transformers a config.json, positions,
// and a head that the class itself has rotated. Here the config is read and resolved, and the head
// is rotated by the resolved numbers in double, so that the reading is what is tested.

using Json = nlohmann::json;

// Relative errors of float32 inverse frequencies that tests/conformance/golden/README.md allows.
constexpr double kFrequencyError = 1.5e-6;
constexpr double kDynamicFrequencyError = 4e-6;
constexpr double kBlendedFrequencyError = 2e-5;  // in the blended bands of llama3 and yarn

struct PeerCase {
  Json file;
  LayerConfig layer;
  std::shared_ptr<const ResolvedRope> rope;
};

std::vector<std::string> Files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(ROPE_PEER_GOLDEN)) {
    names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

size_t Channel(Pairing order, size_t begin, size_t pairs, size_t pair, bool second) {
  return order == Pairing::kHalf ? begin + pair + (second ? pairs : 0)
                                 : begin + 2 * pair + (second ? 1 : 0);
}

// The position of frequency `pair`: of its axis if the file has several. Two axes are h and w.
int64_t PositionOf(const PeerCase& c, size_t token, size_t pair) {
  const Json& rows = c.file.at("positions");
  if (rows.size() == 1) return rows[0][token];
  const auto axis =
      static_cast<size_t>(c.rope->config().mrope.has_value()
                              ? kernels::AxisOf(*c.rope->config().mrope, static_cast<int64_t>(pair))
                              : 0);
  return rows.size() == 3 ? rows[axis][token] : rows[axis - 1][token];
}

int64_t LargestPosition(const PeerCase& c, size_t token) {
  int64_t largest = 0;
  for (const Json& row : c.file.at("positions")) {
    largest = std::max(largest, row[token].get<int64_t>());
  }
  return largest;
}

// Compares the inverse frequencies, whatever their order. A class of several axes keeps those of
// one, and the file of a class that keeps none has null.
void ExpectFrequencies(const PeerCase& c) {
  if (c.file.at("inv_freq").is_null()) return;
  const auto theirs = c.file.at("inv_freq").get<std::vector<double>>();
  std::vector<double> ours;
  for (const kernels::InverseFrequency number :
       c.rope->Evaluate(c.file.at("seq_len").get<int64_t>()).inv_freq) {
    ours.push_back(std::fabs(static_cast<double>(number)));
  }
  std::sort(ours.begin(), ours.end());
  if (ours.size() != theirs.size()) return;
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_NEAR(theirs[i], ours[i], kBlendedFrequencyError * ours[i]) << "inv_freq " << i;
  }
}

// Compares one rotated token; channels outside the pairs must be equal.
void ExpectToken(const PeerCase& c, size_t token) {
  const auto head_dim = static_cast<size_t>(c.rope->head_dim());
  const auto numbers = [&](const char* key) {
    const auto all = c.file.at(key).get<std::vector<float>>();
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(token * head_dim);
    return std::vector<float>(first, first + static_cast<std::ptrdiff_t>(head_dim));
  };
  const std::vector<float> in = numbers("q"), out = numbers("q_out");
  std::vector<double> want(in.begin(), in.end());
  std::vector<double> tolerance(head_dim);
  const auto at = c.rope->Evaluate(c.file.at("seq_len").get<int64_t>());
  const size_t pairs = at.inv_freq.size();
  const auto begin = static_cast<size_t>(c.rope->rotary_offset());
  const double m = c.rope->attention_factor();
  const Pairing pairing = *c.layer.pairing;
  const Pairing left = c.layer.channel_order.value_or(pairing);
  for (size_t i = 0; i < pairs; ++i) {
    const double a = in[Channel(pairing, begin, pairs, i, false)];
    const double b = in[Channel(pairing, begin, pairs, i, true)];
    const kernels::CosSin turn = kernels::ExactCosSin(PositionOf(c, token, i), at.inv_freq[i], m);
    const double angle = static_cast<double>(LargestPosition(c, token)) *
                         std::fabs(static_cast<double>(at.inv_freq[i]));
    const double relative = c.rope->DependsOnSeqLen() ? kDynamicFrequencyError : kFrequencyError;
    for (const bool second : {false, true}) {
      const size_t channel = Channel(left, begin, pairs, i, second);
      want[channel] = second ? b * turn.cos + a * turn.sin : a * turn.cos - b * turn.sin;
      tolerance[channel] = m * (std::fabs(a) + std::fabs(b)) * (angle * (relative + 6e-8) + 3e-7);
    }
  }
  for (size_t i = 0; i < head_dim; ++i) {
    EXPECT_LE(std::fabs(want[i] - out[i]), tolerance[i]) << "token " << token << " channel " << i;
  }
}

class PeerGoldenTest : public ::testing::TestWithParam<std::string> {};

TEST_P(PeerGoldenTest, TheConfigMeansWhatItsModelsCodeDoes) {
  std::ifstream stream(std::string(ROPE_PEER_GOLDEN) + "/" + GetParam() + ".json");
  PeerCase c;
  c.file = Json::parse(stream);
  ASSERT_OK(model, kernels::ModelConfig::Parse(c.file.at("config").dump()));
  kernels::LayerChoice choice;
  if (c.file.at("layer_type").is_string()) choice.layer_type = c.file.at("layer_type");
  auto layer = model->Layer(choice);
  ASSERT_THAT(layer, IsOk());
  c.layer = *std::move(layer);
  ASSERT_TRUE(c.layer.pairing.has_value());
  c.layer.config.seq_len_policy = kernels::SeqLenPolicy::kBatch;
  ASSERT_OK(rope, kernels::Resolve(c.layer.config));
  c.rope = *rope;
  ExpectFrequencies(c);
  const size_t tokens = c.file.at("positions")[0].size();
  ASSERT_EQ(c.file.at("q").size(), tokens * static_cast<size_t>(c.rope->head_dim()));
  for (size_t token = 0; token < tokens; ++token) ExpectToken(c, token);
}

INSTANTIATE_TEST_SUITE_P(Transformers, PeerGoldenTest, ::testing::ValuesIn(Files()),
                         [](const auto& file) {
                           std::string name = file.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

// One of the 211 is found inside a composite only, by its place there, and so has no file.
TEST(PeerGoldenFilesTest, EveryComparedClassHasOne) {
  EXPECT_EQ(Files().size(), 210u);
}

// The identities of 10,000 random configs are those of identity_digests.txt, on every processor.
// With ROPE_WRITE_IDENTITY_DIGESTS=1 the test writes the file.

using Random = std::mt19937_64;

constexpr int kConfigs = 10000;
constexpr std::array<const char*, 5> kEngines = {"", "hf", "vllm", "sglang", "llamacpp"};

// Kinds of scaling, as a config.json has them. Each F is another factor, each L another length and
// each LIST a factor for each pair.
constexpr std::array<std::pair<const char*, const char*>, 12> kScalings = {{
    {"default", R"("rope_type": "default")"},
    {"linear", R"("rope_type": "linear", "factor": F)"},
    {"dynamic", R"("rope_type": "dynamic", "factor": F)"},
    {"dynamic by alpha", R"("rope_type": "dynamic", "alpha": F)"},
    {"ntk", R"("rope_type": "ntk", "factor": F)"},
    {"ntk mixed", R"("rope_type": "ntk", "factor": F, "mixed_b": 0.625)"},
    {"yarn", R"("rope_type": "yarn", "factor": F, "original_max_position_embeddings": L)"},
    {"yarn, not truncated", R"("rope_type": "yarn", "factor": F, "beta_fast": 4F, "beta_slow": 1.5,
        "original_max_position_embeddings": L, "truncate": false)"},
    {"yarn with mscale", R"("rope_type": "yarn", "factor": F, "mscale": F, "mscale_all_dim": F,
        "original_max_position_embeddings": L)"},
    {"longrope", R"("rope_type": "longrope", "short_factor": [LIST], "long_factor": [LIST],
        "factor": F, "original_max_position_embeddings": L)"},
    {"llama3", R"("rope_type": "llama3", "factor": F, "low_freq_factor": 1, "high_freq_factor": 4F,
        "original_max_position_embeddings": L)"},
    {"proportional", R"("rope_type": "proportional", "factor": F, "partial_rotary_factor": 0.5)"},
}};

// Written and not computed, so that no processor can round it in another way.
std::string Factor(Random& random) {
  const uint64_t thousandths = 1000 + random() % 40000;
  return absl::StrFormat("%d.%03d", thousandths / 1000, thousandths % 1000);
}

// `text` with each `word` replaced by another result of `next`.
template <typename Next>
std::string Replaced(std::string text, std::string_view word, const Next& next) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at)) {
    const std::string value = next();
    text.replace(at, word.size(), value);
    at += value.size();
  }
  return text;
}

// Every third config of kind "default" is the grid of a vision tower.
std::string RandomConfig(size_t kind, Random& random) {
  const uint64_t pairs = 2 * (2 + random() % 63);
  std::string scaling = Replaced(kScalings[kind].second, "LIST", [&] {
    std::string list = Factor(random);
    for (uint64_t i = 1; i < pairs; ++i) absl::StrAppend(&list, ", ", Factor(random));
    return list;
  });
  scaling = Replaced(std::move(scaling), "L", [&] { return absl::StrCat(1024 << random() % 6); });
  scaling = Replaced(std::move(scaling), "F", [&] { return Factor(random); });
  const bool grid = kind == 0 && random() % 3 == 0;
  const uint64_t theta = 2 + random() % 10000000;
  return absl::StrFormat(R"({%s"head_dim": %d, "max_position_embeddings": 65536,
                             "rope_theta": %d.%s, "rope_parameters": {%s}})",
                         grid ? R"("model_type": "pixtral", )" : "", 2 * pairs, theta,
                         theta % 2 == 0 ? "0" : "7", scaling);
}

struct Digest {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  int identities = 0;

  template <typename Text>
  void Add(const absl::StatusOr<Text>& text) {
    if (!text.ok()) return;
    ++identities;
    for (const char c : *text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
};

absl::StatusOr<std::string> FingerprintText(const kernels::ModelConfig& model, int turn) {
  kernels::KeyOptions options;
  options.engine.engine = kEngines[static_cast<size_t>(turn) % kEngines.size()];
  options.max_model_len = 65536;
  auto key = IdentifyKey(model, options);
  if (!key.ok()) return key.status();
  return std::move(key->text);
}

absl::StatusOr<std::string> ConfigIdText(const kernels::ModelConfig& model, int turn) {
  auto layer = model.Layer({});
  if (!layer.ok()) return layer.status();
  auto rope =
      kernels::ReadLayer(*std::move(layer), std::nullopt, static_cast<kernels::Compat>(turn % 5));
  if (!rope.ok()) return rope.status();
  return CanonicalText(*rope);
}

// A line a kind: its name, the number of its identities, their digest.
std::string Digests() {
  Random random(20261128);
  std::array<Digest, kScalings.size()> digests;
  for (int turn = 0; turn < kConfigs; ++turn) {
    const size_t kind = random() % kScalings.size();
    const auto model = kernels::ModelConfig::Parse(RandomConfig(kind, random));
    EXPECT_TRUE(model.ok()) << model.status();
    if (!model.ok()) continue;
    digests[kind].Add(FingerprintText(*model, turn));
    digests[kind].Add(ConfigIdText(*model, turn));
  }
  std::string text;
  for (size_t kind = 0; kind < digests.size(); ++kind) {
    absl::StrAppendFormat(&text, "%s: %d, %016x\n", kScalings[kind].first, digests[kind].identities,
                          digests[kind].hash);
  }
  return text;
}

TEST(IdentityTest, RandomConfigsHaveTheRecordedIdentities) {
  const std::string digests = Digests();
  if (std::getenv("ROPE_WRITE_IDENTITY_DIGESTS") != nullptr) {
    std::ofstream(ROPE_IDENTITY_DIGESTS) << digests;
  }
  std::ostringstream recorded;
  recorded << std::ifstream(ROPE_IDENTITY_DIGESTS).rdbuf();
  EXPECT_EQ(digests, recorded.str());
}

}  // namespace
}  // namespace rope::testing
