#include "client/cli/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace rope::client {
namespace {

class FilesTest : public ::testing::Test {
 protected:
  std::string PathOf(const std::string& name) const { return folder_ + "/" + name; }

  const std::string folder_ = rope::testing::TemporaryFolder();
};

TEST_F(FilesTest, WhatIsWrittenIsRead) {
  const std::string bytes("a\0b", 3);
  ASSERT_TRUE(WriteFile(PathOf("both"), "head", bytes).ok());
  EXPECT_EQ(ReadFile(PathOf("both"), 7).value(), "head" + bytes);
}

TEST_F(FilesTest, LargerThanTheBoundIsRefused) {
  ASSERT_TRUE(WriteFile(PathOf("large"), "12345", "").ok());
  EXPECT_EQ(ReadFile(PathOf("large"), 4).status().code(), StatusCode::kOutOfRange);
}

TEST_F(FilesTest, EmptyFileIsEmpty) {
  ASSERT_TRUE(WriteFile(PathOf("empty"), "", "").ok());
  EXPECT_EQ(ReadFile(PathOf("empty"), 4).value(), "");
}

TEST_F(FilesTest, MissingFileAndFolderAreNotFound) {
  EXPECT_EQ(ReadFile(PathOf("missing"), 4).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadFile(folder_, 4).status().code(), StatusCode::kNotFound);
}

TEST_F(FilesTest, PathThatCannotBeWrittenFails) {
  EXPECT_FALSE(WriteFile("/nonexistent/file", "a", "b").ok());
}

}  // namespace
}  // namespace rope::client
