// The bytes of a gRPC message.
#ifndef ROPE_TESTS_SUPPORT_BYTE_BUFFER_H_
#define ROPE_TESTS_SUPPORT_BYTE_BUFFER_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <string>

namespace rope::testing {

inline std::string BytesOf(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  EXPECT_TRUE(buffer.DumpToSingleSlice(&slice).ok());
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_BYTE_BUFFER_H_
