#include "client/cli/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rope::client {
namespace {

std::string PathOf(const std::string& name) {
  return ::testing::TempDir() + "/rope_files_test_" + name;
}

TEST(FilesTest, WhatIsWrittenIsRead) {
  const std::string bytes("a\0b", 3);
  ASSERT_TRUE(WriteFile(PathOf("both"), "head", bytes).ok());
  EXPECT_EQ(ReadFile(PathOf("both"), 7).value(), "head" + bytes);
}

TEST(FilesTest, LargerThanTheBoundIsRefused) {
  ASSERT_TRUE(WriteFile(PathOf("large"), "12345", "").ok());
  EXPECT_EQ(ReadFile(PathOf("large"), 4).status().code(), StatusCode::kOutOfRange);
}

TEST(FilesTest, EmptyFileIsEmpty) {
  ASSERT_TRUE(WriteFile(PathOf("empty"), "", "").ok());
  EXPECT_EQ(ReadFile(PathOf("empty"), 4).value(), "");
}

TEST(FilesTest, MissingFileAndFolderAreNotFound) {
  EXPECT_EQ(ReadFile(PathOf("missing"), 4).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadFile(::testing::TempDir(), 4).status().code(), StatusCode::kNotFound);
}

TEST(FilesTest, PathThatCannotBeWrittenFails) {
  EXPECT_FALSE(WriteFile("/nonexistent/file", "a", "b").ok());
}

}  // namespace
}  // namespace rope::client
