// Texts that are equal where two builds answer alike: without times, ids of requests, versions and
// places of this machine, and with numbers of 12 digits, which every math library gives.
#ifndef ROPE_TESTS_SUPPORT_CANONICAL_TEXT_H_
#define ROPE_TESTS_SUPPORT_CANONICAL_TEXT_H_

#include <google/protobuf/message.h>
#include <grpcpp/support/status.h>

#include <string>
#include <vector>

namespace rope::testing {

// In text format. Bytes are given by their number and a hash.
std::string CanonicalText(const google::protobuf::Message& message);

// The answer of a unary call: `response`, or the code, text and details of an error.
std::string CanonicalText(const grpc::Status& status, const google::protobuf::Message& response);

// What a program printed. Each of `places` is replaced by its number.
std::string CanonicalText(std::string output, const std::vector<std::string>& places);

// 64 bits of a hash of `text`, as 16 hex digits.
std::string HashOf(const std::string& text);

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_CANONICAL_TEXT_H_
