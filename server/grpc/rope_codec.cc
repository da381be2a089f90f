#include "server/grpc/rope_codec.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "proto/wire/message_split.h"
#include "proto/wire/wire_cursor.h"
#include "server/error.h"
#include "server/grpc/grpc_status.h"
#include "server/request/plan.h"

namespace rope::server {
namespace {

// Elements of one repeated message field are bounded before parsing, far above every legal count.
// Fields take some 50 nanoseconds each; numbers of a packed array are one. A config has up to as
// many if its factors for 65,536 channels are not packed.
constexpr proto::SplitOptions kSplitOptions = {.skeleton_bytes_max = limits::kSkeletonBytesMax,
                                               .repeated_messages_max = 1024,
                                               .fields_max = 256 * 1024};

constexpr size_t kSmallTensors = 2;  // q and k
using Views = absl::InlinedVector<std::string_view, 4>;
using Slices = std::vector<grpc::Slice>;
using ReplySlices = absl::InlinedVector<grpc::Slice, 2 * kSmallTensors + 1>;

// A message in one piece.
class ReceivedString final : public ReceivedBytes {
 public:
  explicit ReceivedString(std::string bytes) : bytes_(std::move(bytes)) {}
  std::string_view bytes() const { return bytes_; }

 private:
  const std::string bytes_;
};

Views ViewsOf(const Slices& slices) {
  Views views;
  views.reserve(slices.size());
  for (const grpc::Slice& slice : slices) {
    views.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return views;
}

// A client chooses the frames in which a message arrives, and each frame is a slice that keeps the
// buffer it was read into: a message in frames of a byte would keep a hundred times its size.
// Returns whether `slices` are copies now.
bool JoinSmallSlices(size_t bytes, Slices& slices) {
  constexpr size_t kFewSlices = 4;
  constexpr size_t kSmallBytes = 1024;  // on average; less than a packet brings
  if (slices.size() <= kFewSlices || slices.size() * kSmallBytes <= bytes) return false;
  std::string all;
  all.reserve(bytes);
  for (const grpc::Slice& slice : slices) {
    all.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  slices.assign(1, grpc::Slice(all));
  return true;
}

absl::Status ParseSkeleton(const std::string& skeleton, google::protobuf::Message& message) {
  if (message.ParseFromString(skeleton)) return absl::OkStatus();
  return InvalidField(
      "request", "bytes that do not parse",
      absl::StrCat("a ", message.GetDescriptor()->full_name(), " with UTF-8 strings"));
}

grpc::Slice SliceOf(const std::string& bytes) {
  return grpc::Slice(bytes.data(), bytes.size());
}

// Adds a result that overwrote the received bytes of its tensor, as sub-slices of the received
// slices, which alone can be overwritten. gRPC frees each of them as soon as its parts are sent.
void AddOverwritten(const Request& request, size_t tensor, ReplySlices& slices) {
  const Slices& received = static_cast<const ReceivedSlices&>(*request.decoded.bytes).slices();
  auto slice = received.begin();
  for (const std::string_view fragment : request.plan.tensors[tensor].input.fragments) {
    const auto* const begin = reinterpret_cast<const uint8_t*>(fragment.data());
    const auto holds = [begin](const grpc::Slice& s) {
      return begin >= s.begin() && begin < s.end();
    };
    slice = std::find_if(slice, received.end(), holds);
    ROPE_CHECK(slice != received.end());
    const auto offset = static_cast<size_t>(begin - slice->begin());
    slices.push_back(slice->sub(offset, offset + fragment.size()));
  }
}

absl::Status CheckLength(int64_t length, int64_t message_bytes_max) {
  return CheckAtMost(length, message_bytes_max, "request", " bytes", " (--max_message_bytes)");
}

// Finds the request_id of a message that was refused. Empty: its first fields have none. Error: the
// message is broken before its id.
absl::StatusOr<std::string> FindId(absl::Span<const std::string_view> fragments) {
  constexpr int kFieldsMax = 1024;  // a message of 256 MiB may have a hundred million
  proto::WireCursor cursor(fragments);
  for (int fields = 0; fields < kFieldsMax && cursor.position() < cursor.size(); ++fields) {
    ROPE_ASSIGN_OR_RETURN(const uint32_t tag, cursor.ReadTag());
    const auto type = static_cast<proto::WireType>(tag & 7);
    if (type != proto::WireType::kLength) {
      ROPE_RETURN_IF_ERROR(cursor.SkipField(type));
      continue;
    }
    ROPE_ASSIGN_OR_RETURN(const int64_t length, cursor.ReadLength());
    ROPE_ASSIGN_OR_RETURN(const proto::FragmentedBytes value, cursor.ReadView(length));
    if (tag >> 3 != v1::RotateRequest::kRequestIdFieldNumber) continue;
    std::string id(static_cast<size_t>(value.bytes), '\0');
    value.CopyTo(id.data());
    v1::RotateRequest alone;
    alone.set_request_id(id);
    ROPE_RETURN_IF_ERROR(ParseSkeleton(alone.SerializeAsString(), alone));  // refuses invalid UTF-8
    return id;
  }
  return std::string();
}

// Decodes a message in fragments of `bytes`.
absl::StatusOr<Decoded> Decode(absl::Span<const std::string_view> fragments,
                               std::unique_ptr<ReceivedBytes> bytes, Arrival& arrival) {
  static const proto::Schema& schema = proto::Schema::Of(v1::RotateRequest::descriptor());
  absl::StatusOr<proto::SplitMessage> split = proto::Split(schema, fragments, kSplitOptions);
  if (!split.ok()) {
    if (auto id = FindId(fragments); id.ok()) TakeId(*std::move(id), arrival);
    return split.status();
  }
  Decoded decoded(std::move(bytes), *std::move(split));
  ROPE_RETURN_IF_ERROR(ParseSkeleton(decoded.split.skeleton, decoded.message()));
  TakeId(decoded.message().request_id(), arrival);
  return decoded;
}

// The encoded RotateResponse: text and outputs in turn.
ReplySlices SlicesOfReply(Request& request) {
  ReplySlices slices;
  const std::string rest = WriteReply(request, [&](size_t tensor, std::string& text) {
    slices.push_back(SliceOf(text));
    if (!request.plan.tensors[tensor].TakesBuffer()) {
      AddOverwritten(request, tensor, slices);
    } else {
      slices.push_back(server::SliceOf(std::move(request.run.outputs[tensor])));
    }
    text.clear();
  });
  if (!rest.empty()) slices.push_back(SliceOf(rest));
  return slices;
}

}  // namespace

void TakeId(std::string id, Arrival& arrival) {
  if (id.empty() || static_cast<int64_t>(id.size()) > limits::kRequestIdBytesMax) return;
  arrival.id = std::move(id);
}

absl::Status ReceivedSlices::Take(grpc::ByteBuffer& bytes) {
  constexpr size_t kSlices = 2;  // most small messages: fields, and tensor bytes
  owner_.Swap(&bytes);
  if (!owner_.Valid()) return absl::OkStatus();
  slices_.reserve(kSlices);
  if (!owner_.Dump(&slices_).ok()) {
    return InvalidField("request", "bytes that cannot be read", "a message");
  }
  if (JoinSmallSlices(owner_.Length(), slices_)) owner_.Clear();
  return absl::OkStatus();
}

grpc::Slice SliceOf(PooledBuffer buffer) {
  char* const data = buffer.data();
  const auto size = static_cast<size_t>(buffer.size());
  auto owner = std::make_unique<PooledBuffer>(std::move(buffer));
  return grpc::Slice(
      data, size,
      [](void* released) { std::unique_ptr<PooledBuffer>(static_cast<PooledBuffer*>(released)); },
      owner.release());
}

absl::StatusOr<Decoded> DecodeRequest(grpc::ByteBuffer& bytes, int64_t message_bytes_max,
                                      Arrival& arrival) {
  ROPE_RETURN_IF_ERROR(CheckLength(static_cast<int64_t>(bytes.Length()), message_bytes_max));
  auto received = std::make_unique<ReceivedSlices>();
  ROPE_RETURN_IF_ERROR(received->Take(bytes));
  const Views views = ViewsOf(received->slices());
  return Decode(views, std::move(received), arrival);
}

absl::StatusOr<std::optional<Decoded>> DecodeStreamRequest(grpc::ByteBuffer& bytes,
                                                           int64_t message_bytes_max,
                                                           proto::StreamMessage& message,
                                                           Arrival& arrival) {
  auto received = std::make_unique<ReceivedSlices>();
  ROPE_RETURN_IF_ERROR(received->Take(bytes));
  ROPE_RETURN_IF_ERROR(proto::ReadStreamMessage(ViewsOf(received->slices()), message));
  if (message.sequence == 0) return InvalidField("sequence", "nothing", "a number > 0");
  if (message.cancel) return std::nullopt;
  if (!message.rotate.has_value()) {
    return InvalidField("request", "nothing", "exactly one of cancel, rotate");
  }
  ROPE_RETURN_IF_ERROR(CheckLength(message.rotate->bytes, message_bytes_max));
  return Decode(message.rotate->fragments, std::move(received), arrival);
}

absl::StatusOr<Decoded> DecodeSmallRequest(std::string bytes, Arrival& arrival) {
  auto received = std::make_unique<ReceivedString>(std::move(bytes));
  const std::string_view view = received->bytes();
  return Decode({&view, 1}, std::move(received), arrival);
}

absl::Status DecodeMessage(grpc::ByteBuffer& bytes, google::protobuf::Message& message,
                           ReceivedPayloads& payloads) {
  ROPE_RETURN_IF_ERROR(payloads.received.Take(bytes));
  const Views views = ViewsOf(payloads.received.slices());
  ROPE_ASSIGN_OR_RETURN(payloads.split, proto::Split(proto::Schema::Of(message.GetDescriptor()),
                                                     views, kSplitOptions));
  return ParseSkeleton(payloads.split.skeleton, message);
}

absl::Status DecodeShortMessage(grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
  constexpr int64_t kBytesMax = 1024;
  const auto length = static_cast<int64_t>(bytes.Length());
  ROPE_RETURN_IF_ERROR(CheckAtMost(length, kBytesMax, "request", " bytes"));
  ReceivedPayloads payloads;  // it has none
  return WithoutExceptions([&] { return DecodeMessage(bytes, message, payloads); });
}

grpc::ByteBuffer EncodeMessage(const google::protobuf::Message& message) {
  auto bytes = std::make_unique<std::string>(message.SerializeAsString());
  char* const data = bytes->data();
  const size_t size = bytes->size();
  const grpc::Slice slice(
      data, size, [](void* sent) { std::unique_ptr<std::string>(static_cast<std::string*>(sent)); },
      bytes.release());
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer EncodeReply(Request& request, std::optional<uint64_t> sequence) {
  ReplySlices slices = SlicesOfReply(request);
  if (sequence.has_value()) {
    int64_t bytes = 0;
    for (const grpc::Slice& slice : slices) bytes += static_cast<int64_t>(slice.size());
    slices.insert(slices.begin(), SliceOf(proto::StreamPrefix(*sequence, bytes)));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string EncodeSmallReply(Request& request) {
  return WriteReply(request, [&](size_t tensor, std::string& text) {
    ROPE_CHECK(request.plan.tensors[tensor].TakesBuffer());
    const PooledBuffer& output = request.run.outputs[tensor];
    text.append(output.data(), static_cast<size_t>(output.size()));
  });
}

v1::RotateResponse ErrorReply(const std::string& request_id, const absl::Status& status) {
  v1::RotateResponse response;
  response.set_request_id(request_id);
  *response.mutable_error() = ErrorOf(status);
  return response;
}

}  // namespace rope::server
