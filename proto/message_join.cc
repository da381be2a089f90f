#include "proto/message_join.h"

#include <google/protobuf/io/coded_stream.h>

#include <array>

namespace rope::proto {
namespace {

using google::protobuf::io::CodedOutputStream;

void AppendLengthHeader(int number, size_t length, std::string& out) {
  constexpr uint32_t kLengthDelimited = 2;
  std::array<uint8_t, 20> bytes;  // two varints at most
  uint8_t* end = CodedOutputStream::WriteVarint32ToArray(
      static_cast<uint32_t>(number) << 3 | kLengthDelimited, bytes.data());
  end = CodedOutputStream::WriteVarint64ToArray(length, end);
  out.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(end - bytes.data()));
}

// Everything of a tensor up to its payload, the tensor's own header included. Payload fields come
// last in their messages, so what stands before them is a prefix.
void AppendTensorHeader(int field_number, const TensorPart& part, std::string& out) {
  const std::string tensor = part.tensor->SerializeAsString();
  if (!part.tensor->has_array()) {
    AppendLengthHeader(field_number, tensor.size(), out);
    out += tensor;
    return;
  }
  // The array is the tensor's last field: its end stays, its length grows by the payload.
  const auto array_bytes = static_cast<size_t>(part.tensor->array().GetCachedSize());
  std::string payload_header;
  if (!part.raw.empty()) {
    AppendLengthHeader(v1::Array::kRawFieldNumber, part.raw.size(), payload_header);
  }
  std::string old_header;
  AppendLengthHeader(v1::Tensor::kArrayFieldNumber, array_bytes, old_header);
  std::string new_header;
  AppendLengthHeader(v1::Tensor::kArrayFieldNumber,
                     array_bytes + payload_header.size() + part.raw.size(), new_header);
  const size_t rest_bytes = tensor.size() - array_bytes - old_header.size();
  AppendLengthHeader(
      field_number,
      rest_bytes + new_header.size() + array_bytes + payload_header.size() + part.raw.size(), out);
  out.append(tensor, 0, rest_bytes);
  out += new_header;
  out.append(tensor, rest_bytes + old_header.size());
  out += payload_header;
}

template <typename Message>
std::vector<MessagePart> JoinMessage(const Message& head, absl::Span<const TensorPart> tensors) {
  std::vector<MessagePart> parts;
  std::string header = head.SerializeAsString();
  for (const TensorPart& tensor : tensors) {
    AppendTensorHeader(Message::kTensorsFieldNumber, tensor, header);
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
