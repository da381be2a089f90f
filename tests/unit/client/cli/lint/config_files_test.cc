#include "client/cli/lint/config_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace rope::client {
namespace {

using ::rope::testing::TemporaryFolder;

void Write(const std::string& path) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << "{}";
}

TEST(FindConfigsTest, FilesAreKeptAndFoldersAreSearched) {
  const std::string folder = TemporaryFolder();
  Write(folder + "/b/config.json");
  Write(folder + "/a/deep/config.json");
  Write(folder + "/a/deep/other.json");
  const ConfigFiles found = FindConfigs({"some.json", folder});
  EXPECT_THAT(found.files,
              ElementsAre("some.json", folder + "/a/deep/config.json", folder + "/b/config.json"));
  EXPECT_THAT(found.unreadable, IsEmpty());
}

TEST(FindConfigsTest, LinksToFilesAreFollowedAndLoopsEnd) {
  const std::string folder = TemporaryFolder();
  Write(folder + "/blobs/x");
  std::filesystem::create_directory(folder + "/snapshot");
  std::filesystem::create_symlink("../blobs/x", folder + "/snapshot/config.json");
  std::filesystem::create_directory_symlink(folder, folder + "/snapshot/loop");
  const ConfigFiles found = FindConfigs({folder});
  EXPECT_THAT(found.files, ElementsAre(folder + "/snapshot/config.json"));
  EXPECT_THAT(found.unreadable, IsEmpty());
  std::filesystem::create_directory(folder + "/self");
  std::filesystem::create_symlink("config.json", folder + "/self/config.json");
  const ConfigFiles looped = FindConfigs({folder});
  EXPECT_THAT(looped.files, SizeIs(1));
  ASSERT_THAT(looped.unreadable, SizeIs(1));
  EXPECT_EQ(looped.unreadable[0].path, folder + "/self/config.json");
}

TEST(FindConfigsTest, PipeInAFolderIsUnreadableAndIsNotOpened) {
  const std::string folder = TemporaryFolder();
  ASSERT_EQ(mkfifo((folder + "/config.json").c_str(), 0600), 0);
  const ConfigFiles found = FindConfigs({folder});
  EXPECT_THAT(found.files, IsEmpty());
  ASSERT_THAT(found.unreadable, SizeIs(1));
  EXPECT_THAT(found.unreadable[0].why, HasSubstr("got a special file"));
}

TEST(FindConfigsTest, FolderWithoutAConfigIsUnreadable) {
  const ConfigFiles found = FindConfigs({TemporaryFolder()});
  EXPECT_THAT(found.files, IsEmpty());
  ASSERT_THAT(found.unreadable, SizeIs(1));
  EXPECT_THAT(found.unreadable[0].why, HasSubstr("got no config.json"));
}

TEST(FindConfigsTest, FolderThatIsTooDeepIsSearchedAsFarAsTheLimitAndSaysSo) {
  const std::string folder = TemporaryFolder();
  std::string deep = folder;
  for (int i = 0; i < 40; ++i) deep += "/d";
  Write(deep + "/config.json");
  Write(folder + "/d/config.json");
  const ConfigFiles found = FindConfigs({folder});
  EXPECT_THAT(found.files, ElementsAre(folder + "/d/config.json"));
  ASSERT_THAT(found.unreadable, SizeIs(1));
  EXPECT_THAT(found.unreadable[0].why, HasSubstr("16 levels"));
}

}  // namespace
}  // namespace rope::client
