// Converts the structs of the public headers to and from the messages of proto/rope/v1, without
// tensor bytes (codec.h adds those), and describes the expected answer to a rotate request.
//
// Threading:  Functions only.
// Ownership:  Messages hold copies, including those of positions and norm weights.
// Errors:     INVALID_ARGUMENT, of a rotate request: an array without data; a tensor or array with
//             a shape or strides whose size in bytes is not defined; of a request for tables: a
//             range beside a list of positions. The server checks the rest. INTERNAL: a reply that
//             cannot be read.
#ifndef ROPE_CLIENT_CODEC_MESSAGES_H_
#define ROPE_CLIENT_CODEC_MESSAGES_H_

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "rope/client.h"
#include "rope/rotate.h"
#include "rope/status.h"
#include "rope/v1/config.pb.h"
#include "rope/v1/describe.pb.h"
#include "rope/v1/rope_service.pb.h"
#include "rope/v1/rotate.pb.h"
#include "rope/v1/tables.pb.h"

namespace rope::client {

v1::DType ToMessage(DType dtype);
// nullopt: no dtype of the client's.
std::optional<DType> DTypeNumbered(v1::DType number);
v1::Role ToMessage(Role role);

// INVALID_ARGUMENT of these two: a RopeSpec has two sources.
Result<v1::DescribeRequest> ToMessage(const DescribeRequest& request);
Result<v1::GetTablesRequest> ToMessage(const TablesRequest& request);

// INTERNAL: a config that this library cannot read.
Result<DescribeReply> FromMessage(const v1::DescribeResponse& message);
// INTERNAL: an array whose bytes do not match its shape.
Result<TablesReply> FromMessage(const v1::GetTablesResponse& message);

// These two code the messages of grpc.health.v1.Health/Check without the classes of their schema: a
// program may link another copy of it beside this library, and two copies in one descriptor pool
// end it. `service`: empty is the server as a whole.
grpc::ByteBuffer HealthRequestOf(const std::string& service);
// Skips unknown fields; a number without a name is kUnknown. INTERNAL: malformed bytes.
Result<ServingStatus> ServingStatusOf(const Result<grpc::ByteBuffer>& reply);

// The arrays of Rows: a field, and where the structs have it.
struct RowArray {
  const char* field;
  std::optional<ArrayView> Rows::*view;
  const v1::Array& (v1::Rows::*array)() const;
  v1::Array* (v1::Rows::*mutable_array)();
};
inline constexpr RowArray kRowArrays[] = {
    {"rows.cos_sin", &Rows::cos_sin, &v1::Rows::cos_sin, &v1::Rows::mutable_cos_sin},
    {"rows.angles", &Rows::angles, &v1::Rows::angles, &v1::Rows::mutable_angles},
    {"rows.cos", &Rows::cos, &v1::Rows::cos, &v1::Rows::mutable_cos},
    {"rows.sin", &Rows::sin, &v1::Rows::sin, &v1::Rows::mutable_sin}};

// These two fill a rotate request, except its tensors and the elements of rows: what stays the same
// when it repeats, and the values of one call, except places in regions. INVALID_ARGUMENT:
// alternatives of which more than one is given. REQUIRES: `head` has no such field yet.
Status SetConstants(const RotateRequest& request, v1::RotateRequest& head);
Status SetValues(const RotateRequest& request, v1::RotateRequest& head);
// Two of the values. REQUIRES: `message` has neither positions nor `by`.
Status SetPositions(const Positions& positions, absl::string_view field, v1::Positions& message);
Status SetReposition(const Reposition& reposition, v1::Reposition& message);

// Fills one tensor without its elements, and without those of pages and slots. REQUIRES: `head` is
// empty.
Status SetTensor(const TensorView& view, size_t index, v1::Tensor& head);
void SetShape(const std::vector<int64_t>& shape, v1::Array& array);
// Sets what `parts` says of the pages and slots that `paged` has. `view`: of the tokens.
struct SlotParts {
  bool dtype = false;
  bool shape = false;
  bool elements = false;
};
void SetSlots(const TensorView& view, const std::optional<PagedTokens>& paged,
              const SlotParts& parts, v1::Tensor& head);
// Copies weights into `array`. `field` names them in errors.
Status SetArray(const std::string& field, const ArrayView& view, v1::Array& array);
// The size of the elements of rows or weights in bytes, with gaps. INVALID_ARGUMENT: no data.
Result<int64_t> ArrayBytes(const std::string& field, const ArrayView& view);

// Strides as they are given; without any, those of a packed tensor. Of one that is too large to
// exist they are undefined.
std::vector<int64_t> StridesOf(const std::vector<int64_t>& shape,
                               const std::vector<int64_t>& strides);

// The size of the elements in bytes; of pages, that of their pool.
Result<int64_t> TensorBytes(const TensorView& view, size_t index);
// INVALID_ARGUMENT: null, of a tensor of more than 0 bytes.
Status CheckData(const void* data, int64_t bytes, size_t index);

// The expected answer to one tensor, and its destination.
struct WantedTensor {
  Role role = Role::kQ;
  std::string layout = {};
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape = {};
  std::vector<int64_t> strides = {};  // of `output`; empty: packed
  int64_t bytes = 0;                  // of the elements
  int64_t output_bytes = 0;           // from the first to the end of the last in `output`; its pool
  void* output = nullptr;             // null: the reply allocates memory
  bool in_region = false;  // the server writes it to the region; the answer holds no bytes
  // Where the server writes it in staging memory. Null: directly to `output`, or in the answer.
  const void* staged = nullptr;
};
// INVALID_ARGUMENT: output_strides that a result cannot have.
// REQUIRES: TensorBytes accepted `view`.
Result<WantedTensor> WantedOf(const TensorView& view, std::optional<DType> output_dtype,
                              size_t index);

// Adds the Output.strides of a tensor's result.
inline void AddOutputStrides(const WantedTensor& wanted, v1::RotateRequest& head) {
  head.mutable_output()->add_strides()->mutable_values()->Add(wanted.strides.begin(),
                                                              wanted.strides.end());
}

// The JSON of rope.v1: Protobuf's, with the field names of the schema. Protobuf takes 18 to 28
// microseconds to read a request. INVALID_ARGUMENT, of "request": malformed JSON, or a field that
// the message does not have. INTERNAL, of what is written: text that is not UTF-8.
Status FromJson(const std::string& json, google::protobuf::Message& message);
Result<std::string> ToJson(const google::protobuf::Message& message);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_MESSAGES_H_
