#include "proto/wire/message_join.h"

#include <google/protobuf/io/coded_stream.h>

#include <array>

#include "absl/base/casts.h"

namespace rope::proto {
namespace {

using google::protobuf::io::CodedOutputStream;

constexpr uint32_t kVarint = 0;
constexpr uint32_t kFixed64 = 1;
constexpr uint32_t kLengthDelimited = 2;

constexpr uint32_t Tag(int number, uint32_t type = kLengthDelimited) {
  return static_cast<uint32_t>(number) << 3 | type;
}

// Appends a tag and the varint that follows it, which is a value or a length.
void AppendTagged(uint32_t tag, uint64_t value, std::string& out) {
  std::array<uint8_t, 20> bytes;  // room for two varints
  uint8_t* end = CodedOutputStream::WriteVarint32ToArray(tag, bytes.data());
  end = CodedOutputStream::WriteVarint64ToArray(value, end);
  out.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(end - bytes.data()));
}

// Size of the bytes that AppendFieldHeader appends.
size_t LengthHeaderBytes(int number, size_t length) {
  return CodedOutputStream::VarintSize32(Tag(number)) + CodedOutputStream::VarintSize64(length);
}

// Appends a tensor up to its payload. The array is the tensor's last field, so that the serialized
// tensor is its other fields, the array's header and the array.
void AppendTensorHeader(const v1::Tensor& tensor, size_t raw_bytes, std::string& out) {
  constexpr int kTensors = v1::RotateRequest::kTensorsFieldNumber;
  const std::string text = tensor.SerializeAsString();
  if (!tensor.has_array()) return AppendField(kTensors, text, out);
  const auto array_bytes = static_cast<size_t>(tensor.array().GetCachedSize());
  const size_t header_bytes = LengthHeaderBytes(v1::Tensor::kArrayFieldNumber, array_bytes);
  const std::string_view whole = text;
  AppendTensor(kTensors,
               {.tensor = whole.substr(0, text.size() - header_bytes - array_bytes),
                .array = whole.substr(text.size() - array_bytes),
                .raw_bytes = raw_bytes},
               out);
}

}  // namespace

void AppendFieldHeader(int number, size_t length, std::string& message) {
  AppendTagged(Tag(number), length, message);
}

std::vector<MessagePart> Join(const v1::RotateRequest& head, absl::Span<const TensorPart> tensors) {
  constexpr size_t kTensorHeaderBytes = 64;  // an estimate
  std::vector<MessagePart> parts;
  parts.reserve(tensors.size() + 1);
  std::string header;
  header.reserve(head.ByteSizeLong() + kTensorHeaderBytes);
  head.AppendToString(&header);
  for (const TensorPart& part : tensors) {
    AppendTensorHeader(*part.tensor, part.raw.size(), header);
    if (part.raw.empty()) continue;
    parts.push_back({std::move(header), part.raw});
    header.clear();
  }
  if (!header.empty()) parts.push_back({std::move(header), {}});
  return parts;
}

void AppendVarint(uint64_t value, std::string& message) {
  std::array<uint8_t, 10> varint;
  uint8_t* const end = CodedOutputStream::WriteVarint64ToArray(value, varint.data());
  message.append(reinterpret_cast<const char*>(varint.data()),
                 static_cast<size_t>(end - varint.data()));
}

void AppendVarint(int number, uint64_t value, std::string& message) {
  if (value != 0) AppendTagged(Tag(number, kVarint), value, message);
}

void AppendDouble(int number, double value, std::string& message) {
  const auto bits = absl::bit_cast<uint64_t>(value);
  if (bits == 0) return;  // -0.0 has a sign bit, so it is written
  AppendVarint(Tag(number, kFixed64), message);
  message.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
}

void AppendField(int number, std::string_view value, std::string& message) {
  AppendFieldHeader(number, value.size(), message);
  message += value;
}

void AppendPacked(int number, absl::Span<const int64_t> values, std::string& message) {
  if (values.empty()) return;
  size_t bytes = 0;
  for (const int64_t value : values) {
    bytes += CodedOutputStream::VarintSize64(static_cast<uint64_t>(value));
  }
  AppendFieldHeader(number, bytes, message);
  for (const int64_t value : values) AppendVarint(static_cast<uint64_t>(value), message);
}

void AppendDoubles(int number, absl::Span<const double> values, std::string& message) {
  if (values.empty()) return;
  AppendField(number,
              {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)},
              message);
}

void AppendSpan(int number, uint64_t region_id, uint64_t offset, std::string& message) {
  std::string span;
  AppendVarint(v1::RegionSpan::kRegionIdFieldNumber, region_id, span);
  AppendVarint(v1::RegionSpan::kOffsetFieldNumber, offset, span);
  AppendField(number, span, message);
}

void AppendTensor(int number, const TensorText& tensor, std::string& message) {
  constexpr int kArray = v1::Tensor::kArrayFieldNumber;
  constexpr int kRaw = v1::Array::kRawFieldNumber;
  const size_t raw_bytes =
      tensor.raw_bytes == 0 ? 0 : LengthHeaderBytes(kRaw, tensor.raw_bytes) + tensor.raw_bytes;
  const size_t array_bytes = tensor.array.size() + raw_bytes;
  AppendFieldHeader(
      number, tensor.tensor.size() + LengthHeaderBytes(kArray, array_bytes) + array_bytes, message);
  message += tensor.tensor;
  AppendFieldHeader(kArray, array_bytes, message);
  message += tensor.array;
  if (tensor.raw_bytes > 0) AppendFieldHeader(kRaw, tensor.raw_bytes, message);
}

}  // namespace rope::proto
