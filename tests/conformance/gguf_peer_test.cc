// GGUF files that the gguf package of PyPI writes from tests/conformance/configs, compared with
// those config.json files. ROPE_GGUF_PYTHON names a Python that has the package.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>

#include "kernels/config/model_file.h"
#include "tests/support/same_reading.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"

namespace rope::kernels {
namespace {

using ::rope::testing::ExpectSameReading;
using ::rope::testing::TemporaryFolder;

struct Model {
  std::string name;
  int64_t layers;
  Pairing pairing;  // of the GGUF file's tensors
};

const Model kModels[] = {
    {"deepseek-v2-lite", 27, Pairing::kInterleaved},
    {"gemma-3-27b-rope-parameters", 62, Pairing::kHalf},
    {"gemma-3-4b", 34, Pairing::kHalf},
    {"gpt-oss-20b", 24, Pairing::kHalf},
    {"llama-3.1-8b", 32, Pairing::kInterleaved},
    {"phi-4-mini", 32, Pairing::kHalf},
    {"qwen2.5-7b-instruct", 28, Pairing::kHalf},
    {"qwen3-8b", 36, Pairing::kHalf},
    {"qwen3-8b-yarn", 36, Pairing::kHalf},
};

class GgufPeerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const python = std::getenv("ROPE_GGUF_PYTHON");
    if (python == nullptr || *python == '\0') {
      GTEST_SKIP() << "the gguf package is not here: set ROPE_GGUF_PYTHON to a Python that has it";
    }
    const std::string command = std::string("'") + python +
                                "' -B '" ROPE_SOURCE_DIR "/tests/peers/write_gguf.py' '" +
                                kConfigs + "' '" + folder_ + "'";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }

  const std::string kConfigs = ROPE_SOURCE_DIR "/tests/conformance/configs";
  const std::string folder_ = TemporaryFolder();
};

TEST_F(GgufPeerTest, FilesOfThePackageReadLikeTheirConfigs) {
  for (const Model& model : kModels) {
    SCOPED_TRACE(model.name);
    ASSERT_OK(gguf, ReadModelFile(folder_ + "/" + model.name + ".gguf"));
    ASSERT_OK(config, ReadModelFile(kConfigs + "/" + model.name + ".json"));
    ExpectSameReading(*gguf, *config, model.layers);
    EXPECT_EQ(gguf->Layer({.layer = 0})->pairing, model.pairing);
  }
  std::printf("measured: %zu models read alike from GGUF and config.json\n", std::size(kModels));
}

TEST_F(GgufPeerTest, BigEndianFileOfThePackageIsRefused) {
  EXPECT_THAT(ReadModelFile(folder_ + "/big_endian.gguf"), IsInvalid("a big-endian file"));
}

}  // namespace
}  // namespace rope::kernels
