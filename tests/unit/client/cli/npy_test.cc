#include "client/cli/npy.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace rope::client {
namespace {

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
