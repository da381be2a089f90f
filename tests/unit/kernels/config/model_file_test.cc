#include "kernels/config/model_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "tests/support/gguf_writer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/kernels/config/remark_texts.h"

namespace rope::kernels {
namespace {

using ::rope::testing::GgufWriter;
using ::rope::testing::TemporaryFolder;
using ::rope::testing::TextsOf;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class ModelFileTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& bytes) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  const std::string folder_ = TemporaryFolder();
};

TEST_F(ModelFileTest, MagicDecidesBetweenGgufAndJson) {
  ASSERT_OK(gguf,
            ReadModelFile(Write("config.json", GgufWriter().F32(".rope.freq_base", 5e5f).Bytes())));
  EXPECT_EQ(gguf->Layer({})->config.rope_theta, 5e5);
  ASSERT_OK(json, ReadModelFile(Write("model.gguf", " \n{\"rope_theta\": 7}")));
  EXPECT_EQ(json->Layer({})->config.rope_theta, 7);
}

TEST_F(ModelFileTest, SubConfigIsChosenInJsonAndRefusedInGguf) {
  ASSERT_OK(vision, ReadModelFile(Write("config.json",
                                        R"({"rope_theta": 7, "vision_config": {"rope_theta": 9}})"),
                                  "vision_config"));
  EXPECT_EQ(vision->Layer({})->config.rope_theta, 9);
  const std::string gguf = Write("a.gguf", GgufWriter().F32(".rope.freq_base", 5e5f).Bytes());
  EXPECT_THAT(ReadModelFile(gguf, "vision_config"),
              StatusIs(kInvalid, gguf + ": sub_config: got \"vision_config\", want no sub_config: "
                                        "a GGUF file has none"));
}

TEST_F(ModelFileTest, OtherFilesAreRefusedWithTheirPath) {
  const std::string zip = Write("a.pth", "PK\3\4 and so on");
  EXPECT_THAT(ReadModelFile(zip),
              StatusIs(kInvalid, zip + ": file: got \"PK??\" at the start, want \"GGUF\" or a "
                                       "JSON object"));
  EXPECT_THAT(ReadModelFile(Write("empty", "")), IsInvalid("an empty text"));
  EXPECT_THAT(ReadModelFile(Write("cut.gguf", "GGUF\3")),
              IsInvalid("gguf: got 5 bytes, want the version"));
  EXPECT_THAT(ReadModelFile(Write("long.json", std::string("{").append(16 << 20, ' '))),
              IsInvalid("file: got 16777217 bytes of JSON, want at most"));
}

TEST_F(ModelFileTest, PathThatIsNoFileIsRefused) {
  EXPECT_THAT(ReadModelFile(folder_ + "/none"), IsNotFound(folder_ + "/none"));
  EXPECT_THAT(ReadModelFile(folder_), IsInvalid("want a regular file"));
  const std::string fifo = folder_ + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(ReadModelFile(fifo), IsInvalid("want a regular file"));
}

TEST_F(ModelFileTest, FileThatBecomesShorterIsAnError) {
  const std::string path = Write("model", std::string(100, 'x'));
  ASSERT_OK(source, FileSource::Open(path));
  std::string bytes(100, '\0');
  EXPECT_THAT((*source)->Read(0, absl::MakeSpan(bytes.data(), bytes.size())), IsOk());
  Write("model", "short");
  EXPECT_THAT((*source)->Read(0, absl::MakeSpan(bytes.data(), bytes.size())),
              IsInvalid(": got 5 bytes, want 100"));
}

// A model in three files; rope_freqs is in the third.
class SplitModelTest : public ModelFileTest {
 protected:
  static GgufWriter Part(const std::string& architecture, uint16_t number) {
    GgufWriter writer(architecture);
    writer.U16("split.no", number).U16("split.count", 3);
    return writer;
  }
  std::string WriteFirst(const std::string& name = "m-00001-of-00003.gguf") {
    return Write(
        name,
        Part("llama", 0).F32(".rope.freq_base", 10000).U32(".attention.key_length", 4).Bytes());
  }
  void WriteOthers() {
    Write("m-00002-of-00003.gguf", Part("", 1).Bytes());
    Write("m-00003-of-00003.gguf", Part("", 2).Tensor("rope_freqs.weight", {1, 4}).Bytes());
  }
};

TEST_F(SplitModelTest, TensorOfAnotherPartIsFound) {
  const std::string first = WriteFirst();
  WriteOthers();
  ASSERT_OK(model, ReadModelFile(first));
  EXPECT_THAT(model->Layer({})->config.inv_freq, ElementsAre(1, 0.0025));
  EXPECT_THAT(TextsOf(model->Layer({})->remarks), IsEmpty());
}

TEST_F(SplitModelTest, PartThatIsNotThereIsWarnedOf) {
  for (const std::string name : {"m-00001-of-00003.gguf", "renamed.gguf"}) {
    ASSERT_OK(model, ReadModelFile(WriteFirst(name)));
    EXPECT_THAT(TextsOf(model->Layer({})->remarks),
                Contains(HasSubstr("the model is split into 3 files, of which not all were read")));
  }
}

TEST_F(SplitModelTest, LaterPartHasNoMetadata) {
  WriteOthers();
  EXPECT_THAT(ReadModelFile(folder_ + "/m-00003-of-00003.gguf"),
              IsInvalid("general.architecture: got nothing, want the name of an "
                        "architecture; the first part of a split model has it"));
  EXPECT_THAT(ReadModelFile(Write("second", Part("llama", 1).Bytes())),
              IsInvalid("split.no: got 1, want 0"));
}

}  // namespace
}  // namespace rope::kernels
