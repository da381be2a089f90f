#include "proto/message_join.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

namespace rope::proto {
namespace {

using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

void AppendLengthHeader(int number, size_t length, std::string& out) {
  constexpr int kLengthDelimited = 2;
  StringOutputStream stream(&out);
  CodedOutputStream coded(&stream);
  coded.WriteTag(static_cast<uint32_t>(number) << 3 | kLengthDelimited);
  coded.WriteVarint64(length);
}

// Everything of a tensor up to its payload, the tensor's own header included. Payload fields come
// last in their messages, so what stands before them is a prefix.
std::string TensorHeader(int field_number, const TensorPart& part) {
  std::string array = part.tensor->array().SerializeAsString();
  if (!part.raw.empty()) {
    AppendLengthHeader(v1::Array::kRawFieldNumber, part.raw.size(), array);
  }
  v1::Tensor rest = *part.tensor;
  const bool has_array = rest.has_array();
  rest.clear_array();
  std::string tensor = rest.SerializeAsString();
  if (has_array) {
    AppendLengthHeader(v1::Tensor::kArrayFieldNumber, array.size() + part.raw.size(), tensor);
    tensor += array;
  }
  std::string header;
  AppendLengthHeader(field_number, tensor.size() + part.raw.size(), header);
  header += tensor;
  return header;
}

template <typename Message>
std::vector<MessagePart> JoinMessage(const Message& head, absl::Span<const TensorPart> tensors) {
  std::vector<MessagePart> parts;
  std::string header = head.SerializeAsString();
  for (const TensorPart& tensor : tensors) {
    header += TensorHeader(Message::kTensorsFieldNumber, tensor);
    if (tensor.raw.empty()) continue;
    parts.push_back({std::move(header), tensor.raw});
    header.clear();
  }
  if (!header.empty()) parts.push_back({std::move(header), {}});
  return parts;
}

}  // namespace

std::vector<MessagePart> Join(const v1::RotateRequest& head, absl::Span<const TensorPart> tensors) {
  return JoinMessage(head, tensors);
}

std::vector<MessagePart> Join(const v1::RotateResponse& head,
                              absl::Span<const TensorPart> tensors) {
  return JoinMessage(head, tensors);
}

}  // namespace rope::proto
