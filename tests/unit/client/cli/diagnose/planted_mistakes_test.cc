// Planted mistakes: random tensors that a wrong program rotated. diagnose must name what it did,
// and must name nothing where a tensor is no rotation of the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/diagnose/diagnose.h"
#include "client/cli/diagnose/position_rules.h"
#include "kernels/frequencies/frequencies.h"
#include "tests/support/status_matchers.h"

namespace rope::client {
namespace {

using kernels::Pairing;
using kernels::RopeConfig;
using kernels::RopeType;

constexpr int kDraws = 100;  // of each mistake
constexpr int64_t kPositionsEnd = 100'000;

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int64_t From(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  template <typename T>
  T Of(const std::vector<T>& choices) {
    return choices[static_cast<size_t>(From(0, static_cast<int64_t>(choices.size()) - 1))];
  }
  double Normal() { return normal_(engine_); }

 private:
  std::mt19937 engine_;
  std::normal_distribution<double> normal_;
};

// A tensor [tokens, heads, head_dim], and the config and the positions that its owner believes in.
struct Draw {
  RopeConfig config;
  Pairing pairing = Pairing::kHalf;
  DType dtype = DType::kFloat32;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t start = 0;
  std::vector<double> before;

  std::vector<int64_t> Positions() const {
    std::vector<int64_t> positions(static_cast<size_t>(tokens));
    std::iota(positions.begin(), positions.end(), start);
    return positions;
  }
};

RopeConfig RandomConfig(Random& random, int64_t head_dim) {
  RopeConfig config = {.rope_theta = random.Of<double>({10000, 500000, 1e6}),
                       .head_dim = head_dim,
                       .max_position_embeddings = 131072};
  config.rope_type = random.Of<RopeType>(
      {RopeType::kDefault, RopeType::kLinear, RopeType::kYarn, RopeType::kLlama3});
  if (random.From(0, 3) == 0) config.rotary_dim = head_dim / 2;
  if (config.rope_type == RopeType::kDefault) return config;
  config.factor = random.Of<double>({2, 4, 8});
  if (config.rope_type != RopeType::kLinear) config.original_max_position_embeddings = 4096;
  if (config.rope_type == RopeType::kLlama3) {
    config.low_freq_factor = 1;
    config.high_freq_factor = 4;
  }
  return config;
}

Draw RandomDraw(Random& random) {
  Draw draw;
  draw.head_dim = random.Of<int64_t>({32, 64, 96, 128});
  draw.config = RandomConfig(random, draw.head_dim);
  draw.pairing = random.Of<Pairing>({Pairing::kHalf, Pairing::kInterleaved});
  draw.dtype = random.Of<DType>({DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  draw.tokens = random.From(5, 9);
  draw.heads = random.From(2, 4);
  draw.start = random.From(1, random.Of<int64_t>({8, 1000, kPositionsEnd - 10}));
  for (int64_t i = 0; i < draw.tokens * draw.heads * draw.head_dim; ++i) {
    draw.before.push_back(RoundedTo(random.Normal(), draw.dtype));
  }
  return draw;
}

RotatedSample SampleOf(const Draw& draw, std::vector<double> after) {
  RotatedSample sample;
  sample.tokens_total = draw.tokens;
  sample.rows_total = sample.rows = sample.heads = draw.heads;
  sample.head_dim = draw.head_dim;
  sample.dtype = draw.dtype;
  sample.positions = sample.all_positions = draw.Positions();
  sample.seq_len = draw.start + draw.tokens;
  for (int64_t i = 0; i < draw.tokens; ++i) sample.token_indices.push_back(i);
  for (int64_t i = 0; i < draw.heads; ++i) sample.row_indices.push_back(i);
  sample.before = draw.before;
  sample.after = std::move(after);
  return sample;
}

// What a program did.
struct Program {
  RopeConfig config;
  Pairing pairing = Pairing::kHalf;
  std::function<double(int64_t token, int64_t head)> position;
  int times = 1;
  bool is_transposed = false;
  bool has_multiplier = true;
  std::function<bool(int64_t token, int64_t head)> turns = [](int64_t, int64_t) { return true; };
  // Reorder the rotated channels of a head; empty: not.
  std::function<std::vector<double>(const std::vector<double>&)> input = {};
  std::function<std::vector<double>(const std::vector<double>&)> output = {};
};

Program RightProgram(const Draw& draw) {
  const int64_t start = draw.start;
  return {
      .config = draw.config, .pairing = draw.pairing, .position = [start](int64_t token, int64_t) {
        return static_cast<double>(start + token);
      }};
}

// Rotates the first channels of a head, one for each two frequencies, in long double.
void Turn(const Program& program, const kernels::ResolvedRope& rope, double position,
          std::vector<double>& head) {
  const auto frequencies = rope.Evaluate(kPositionsEnd).inv_freq;
  const double m = program.has_multiplier ? rope.attention_factor() : 1;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const bool is_half = program.pairing == Pairing::kHalf;
    double& a = head[is_half ? i : 2 * i];
    double& b = head[is_half ? i + frequencies.size() : 2 * i + 1];
    const long double angle = static_cast<long double>(position) * frequencies[i];
    const double cos = m * static_cast<double>(std::cos(angle));
    const double sin = (program.is_transposed ? -m : m) * static_cast<double>(std::sin(angle));
    const double turned = a * cos - b * sin;
    b = a * sin + b * cos;
    a = turned;
  }
}

std::vector<double> Rotated(const Draw& draw, const Program& program) {
  const auto rope = kernels::Resolve(program.config, draw.head_dim).value();
  std::vector<double> after = draw.before;
  const auto head_dim = static_cast<std::ptrdiff_t>(draw.head_dim);
  for (int64_t token = 0; token < draw.tokens; ++token) {
    for (int64_t h = 0; h < draw.heads; ++h) {
      if (!program.turns(token, h)) continue;
      const auto place = after.begin() + (token * draw.heads + h) * head_dim;
      std::vector<double> head(place, place + head_dim);
      if (program.input) head = program.input(head);
      for (int i = 0; i < program.times; ++i) {
        Turn(program, *rope, program.position(token, h), head);
        for (double& value : head) value = RoundedTo(value, draw.dtype);
      }
      if (program.output) head = program.output(head);
      std::copy(head.begin(), head.end(), place);
    }
  }
  return after;
}

std::vector<double> DeInterleaved(const std::vector<double>& head, size_t channels) {
  std::vector<double> result = head;
  for (size_t i = 0; i < channels / 2; ++i) {
    result[i] = head[2 * i];
    result[i + channels / 2] = head[2 * i + 1];
  }
  return result;
}

std::vector<double> Interleaved(const std::vector<double>& head, size_t channels) {
  std::vector<double> result = head;
  for (size_t i = 0; i < channels / 2; ++i) {
    result[2 * i] = head[i];
    result[2 * i + 1] = head[i + channels / 2];
  }
  return result;
}

size_t RotatedChannels(const Draw& draw) {
  return static_cast<size_t>(draw.config.rotary_dim.value_or(draw.head_dim));
}

std::string NamesOf(const std::vector<Explanation>& explanations) {
  std::vector<std::string> names;
  for (const Explanation& explanation : explanations) {
    names.push_back(absl::StrJoin(explanation.changes, " + "));
  }
  return absl::StrJoin(names, " | ");
}

std::string TextOf(const Draw& draw) {
  return absl::StrCat(std::string(Name(draw.config.rope_type)), " theta ", draw.config.rope_theta,
                      " factor ", draw.config.factor.value_or(1), " rotary_dim ",
                      RotatedChannels(draw), " of ", draw.head_dim, ", ",
                      std::string(Name(draw.pairing)), ", dtype ", static_cast<int>(draw.dtype),
                      ", ", draw.tokens, " tokens from ", draw.start, ", ", draw.heads, " heads");
}

// A mistake: what the wrong program does, and how diagnose has to call it. An explanation may begin
// with the words, because a rule may say after them what else gives the same positions.
using Plant = std::function<std::string(Random& random, Draw& draw, Program& program)>;

void ExpectNamed(uint32_t seed, const Plant& plant) {
  Random random(seed);
  int failed = 0;
  for (int i = 0; i < kDraws && failed < 3; ++i) {
    Draw draw = RandomDraw(random);
    Program program = RightProgram(draw);
    const std::string want = plant(random, draw, program);
    const RotatedSample sample = SampleOf(draw, Rotated(draw, program));
    ASSERT_OK(diagnosis, Diagnose(sample, draw.config, draw.pairing, kPositionsEnd));
    const auto& found = diagnosis->explanations;
    const bool is_named = std::any_of(found.begin(), found.end(), [&want](const auto& e) {
      return e.changes.size() == 1 && absl::StartsWith(e.changes.front(), want);
    });
    EXPECT_TRUE(is_named) << "want " << want << ", got " << NamesOf(found) << "\n" << TextOf(draw);
    EXPECT_FALSE(diagnosis->as_configured.explains()) << want << "\n" << TextOf(draw);
    failed += is_named ? 0 : 1;
  }
}

TEST(PlantedMistakesTest, RightProgramIsAsConfigured) {
  Random random(1);
  for (int i = 0; i < kDraws; ++i) {
    const Draw draw = RandomDraw(random);
    ASSERT_OK(diagnosis, Diagnose(SampleOf(draw, Rotated(draw, RightProgram(draw))), draw.config,
                                  draw.pairing, kPositionsEnd));
    EXPECT_TRUE(diagnosis->as_configured.explains()) << TextOf(draw);
    EXPECT_EQ(NamesOf(diagnosis->explanations), "");
  }
}

TEST(PlantedMistakesTest, NothingIsNamedOfUnrelatedTensors) {
  Random random(2);
  for (int i = 0; i < 10 * kDraws; ++i) {
    const Draw draw = RandomDraw(random);
    std::vector<double> after;
    while (after.size() < draw.before.size()) {
      after.push_back(RoundedTo(random.Normal(), draw.dtype));
    }
    ASSERT_OK(diagnosis, Diagnose(SampleOf(draw, after), draw.config, draw.pairing, kPositionsEnd));
    EXPECT_FALSE(diagnosis->as_configured.explains()) << TextOf(draw);
    EXPECT_EQ(NamesOf(diagnosis->explanations), "") << TextOf(draw);
    EXPECT_FALSE(diagnosis->facts.empty());
  }
}

TEST(PlantedMistakesTest, NotRotated) {
  ExpectNamed(10, [](Random&, Draw&, Program& program) {
    program.turns = [](int64_t, int64_t) { return false; };
    return kNotRotated;
  });
}

TEST(PlantedMistakesTest, RotatedSeveralTimes) {
  ExpectNamed(11, [](Random& random, Draw&, Program& program) {
    program.times = static_cast<int>(random.From(2, 8));
    return absl::StrCat("rotated ", program.times, " times");
  });
}

TEST(PlantedMistakesTest, OtherPairing) {
  ExpectNamed(12, [](Random&, Draw& draw, Program& program) {
    const bool is_half = draw.pairing == Pairing::kHalf;
    program.pairing = is_half ? Pairing::kInterleaved : Pairing::kHalf;
    return absl::StrCat("pairing ", is_half ? "interleaved" : "half");
  });
}

TEST(PlantedMistakesTest, InputOrOutputInTheOtherOrder) {
  for (const bool is_input : {true, false}) {
    ExpectNamed(is_input ? 13 : 14, [is_input](Random& random, Draw& draw, Program& program) {
      const size_t channels = RotatedChannels(draw);
      const bool forth = random.From(0, 1) == 0;
      (is_input ? program.input : program.output) = [=](const auto& head) {
        return forth ? DeInterleaved(head, channels) : Interleaved(head, channels);
      };
      return absl::StrCat(is_input ? "input" : "output", " channels ",
                          forth ? "de-interleaved" : "interleaved");
    });
  }
}

TEST(PlantedMistakesTest, InverseDirection) {
  ExpectNamed(15, [](Random&, Draw& draw, Program& program) {
    program.is_transposed = true;
    return draw.config.rope_type == RopeType::kYarn ? "transposed rotation (backward)"
                                                    : "inverse rotation";
  });
}

// A program whose positions depend on the token alone.
void ExpectPositions(
    uint32_t seed, const std::function<std::string(Random&, Draw&, std::vector<int64_t>&)>& plant) {
  ExpectNamed(seed, [&plant](Random& random, Draw& draw, Program& program) {
    std::vector<int64_t> positions = draw.Positions();
    std::string want = plant(random, draw, positions);
    program.position = [positions](int64_t token, int64_t) {
      return static_cast<double>(positions[static_cast<size_t>(token)]);
    };
    return want;
  });
}

TEST(PlantedMistakesTest, EveryTokenAtOnePosition) {
  ExpectPositions(20, [](Random& random, Draw&, std::vector<int64_t>& positions) {
    const int64_t position = random.From(1, kPositionsEnd);
    std::fill(positions.begin(), positions.end(), position);
    return absl::StrCat("every token at position ", position);
  });
}

TEST(PlantedMistakesTest, LeftPadding) {
  ExpectPositions(21, [](Random& random, Draw&, std::vector<int64_t>& positions) {
    const int64_t padded = random.From(1, 3);
    const int64_t filler = random.From(0, 1);
    for (size_t i = 0; i < positions.size(); ++i) {
      const int64_t real = static_cast<int64_t>(i) - padded;
      positions[i] = real < 0 ? filler : real;
    }
    return absl::StrCat("left padding: the first ", padded, padded == 1 ? " token" : " tokens",
                        " at position ", filler, ", the others count from 0");
  });
}

TEST(PlantedMistakesTest, Reversed) {
  ExpectPositions(22, [](Random&, Draw&, std::vector<int64_t>& positions) {
    std::reverse(positions.begin(), positions.end());
    return "positions reversed";
  });
}

TEST(PlantedMistakesTest, Modulo) {
  ExpectPositions(23, [](Random& random, Draw& draw, std::vector<int64_t>& positions) {
    draw.start = std::max<int64_t>(draw.start, 16);
    const int64_t modulus = random.From(3, 4);
    for (size_t i = 0; i < positions.size(); ++i) {
      positions[i] = (draw.start + static_cast<int64_t>(i)) % modulus;
    }
    return absl::StrCat("positions modulo ", modulus);
  });
}

TEST(PlantedMistakesTest, Scaled) {
  ExpectPositions(24, [](Random& random, Draw& draw, std::vector<int64_t>& positions) {
    const int64_t factor = random.From(2, 5);
    draw.start = std::min(draw.start, kPositionsEnd / factor);
    for (size_t i = 0; i < positions.size(); ++i) {
      positions[i] = (draw.start + static_cast<int64_t>(i)) * factor;
    }
    return absl::StrCat("positions * ", factor);
  });
}

TEST(PlantedMistakesTest, Shifted) {
  ExpectPositions(25, [](Random& random, Draw& draw, std::vector<int64_t>& positions) {
    const int64_t by = random.Of<int64_t>({1, -1, 2, 7, 4096});
    if (draw.start == 2 && by == -1) draw.start = 3;
    draw.start = std::max<int64_t>(draw.start, 3);
    for (size_t i = 0; i < positions.size(); ++i) {
      positions[i] = draw.start + static_cast<int64_t>(i) + by;
    }
    return absl::StrCat("positions ", by < 0 ? "- " : "+ ", std::abs(by));
  });
}

TEST(PlantedMistakesTest, CountedFromZero) {
  ExpectPositions(26, [](Random&, Draw& draw, std::vector<int64_t>& positions) {
    draw.start = std::max<int64_t>(draw.start, 2);
    std::iota(positions.begin(), positions.end(), int64_t{0});
    return "positions counted from 0";
  });
}

TEST(PlantedMistakesTest, PositionsWithoutARule) {
  ExpectPositions(27, [](Random& random, Draw&, std::vector<int64_t>& positions) {
    for (int64_t& position : positions) position = random.From(0, kPositionsEnd);
    return absl::StrCat("positions ", ShortForm(positions));
  });
}

TEST(PlantedMistakesTest, PositionsFollowTheHeads) {
  ExpectNamed(30, [](Random&, Draw& draw, Program& program) {
    const int64_t start = draw.start;
    program.position = [start](int64_t, int64_t head) { return static_cast<double>(start + head); };
    return "head and sequence axes swapped: positions follow the heads";
  });
}

TEST(PlantedMistakesTest, MemoryViewedWithExchangedAxes) {
  ExpectNamed(31, [](Random&, Draw& draw, Program& program) {
    const int64_t start = draw.start;
    const int64_t heads = draw.heads;
    const int64_t tokens = draw.tokens;
    program.position = [=](int64_t token, int64_t head) {
      return static_cast<double>(start + (token * heads + head) % tokens);
    };
    return "head and sequence axes swapped: the memory was viewed";
  });
}

TEST(PlantedMistakesTest, OnlySomeHeads) {
  ExpectNamed(32, [](Random& random, Draw& draw, Program& program) {
    const int64_t turned = random.From(1, draw.heads - 1);
    program.turns = [turned](int64_t, int64_t head) { return head < turned; };
    std::vector<int64_t> heads(static_cast<size_t>(turned));
    std::iota(heads.begin(), heads.end(), int64_t{0});
    return absl::StrCat("only heads ", ShortForm(heads), " rotated");
  });
}

TEST(PlantedMistakesTest, OnlySomeTokens) {
  ExpectNamed(33, [](Random& random, Draw& draw, Program& program) {
    const int64_t first = random.From(1, draw.tokens - 1);
    program.turns = [first](int64_t token, int64_t) { return token >= first; };
    std::vector<int64_t> tokens(static_cast<size_t>(draw.tokens - first));
    std::iota(tokens.begin(), tokens.end(), first);
    return absl::StrCat("only tokens ", ShortForm(tokens), " rotated");
  });
}

TEST(PlantedMistakesTest, OtherTheta) {
  ExpectNamed(40, [](Random&, Draw& draw, Program& program) {
    program.config.rope_theta = draw.config.rope_theta == 10000 ? 500000 : 10000;
    return absl::StrCat("theta ", program.config.rope_theta == 10000 ? "10000" : "500000");
  });
}

TEST(PlantedMistakesTest, MissingAttentionFactor) {
  ExpectNamed(41, [](Random&, Draw& draw, Program& program) {
    draw.config.rope_type = RopeType::kYarn;
    draw.config.factor = 8;
    draw.config.original_max_position_embeddings = 4096;
    draw.config.low_freq_factor.reset();
    draw.config.high_freq_factor.reset();
    program.config = draw.config;
    program.has_multiplier = false;
    return "attention factor missing";
  });
}

// Pairs keep their norms, so that every kind of hypothesis is tried.
TEST(PlantedMistakesTest, NothingIsNamedOfAnglesThatNoConfigGives) {
  Random random(42);
  for (int i = 0; i < kDraws / 5; ++i) {
    const Draw draw = RandomDraw(random);
    Program program = RightProgram(draw);
    program.config = {.head_dim = draw.head_dim, .rotary_dim = draw.config.rotary_dim};
    for (size_t pair = 0; pair < RotatedChannels(draw) / 2; ++pair) {
      program.config.inv_freq.push_back(std::abs(random.Normal()));
    }
    ASSERT_OK(diagnosis, Diagnose(SampleOf(draw, Rotated(draw, program)), draw.config, draw.pairing,
                                  kPositionsEnd));
    EXPECT_EQ(NamesOf(diagnosis->explanations), "") << TextOf(draw);
    EXPECT_THAT(diagnosis->facts, ::testing::Contains(::testing::HasSubstr("keeps its norm")));
  }
}

TEST(PlantedMistakesTest, OneTokenAtPositionZeroIsSaidToBeAmbiguous) {
  Random random(50);
  Draw draw = RandomDraw(random);
  draw.config = {.head_dim = draw.head_dim};
  draw.tokens = 1;
  draw.start = 0;
  draw.before.resize(static_cast<size_t>(draw.heads * draw.head_dim));
  ASSERT_OK(diagnosis,
            Diagnose(SampleOf(draw, draw.before), draw.config, draw.pairing, kPositionsEnd));
  EXPECT_TRUE(diagnosis->as_configured.explains());
  EXPECT_EQ(NamesOf(diagnosis->explanations), kNotRotated);
}

}  // namespace
}  // namespace rope::client
