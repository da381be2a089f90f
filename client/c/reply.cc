// Replies of rotations.
#include <string>

#include "client/c/error.h"
#include "client/c/objects.h"
#include "client/c/read_request.h"
#include "client/c/struct_size.h"
#include "rope/rope.h"

namespace {

using rope::Status;

// As the header numbers them.
int32_t NumberOf(rope::client::Role role) {
  return role == rope::client::Role::kQ ? ROPE_ROLE_Q : ROPE_ROLE_K;
}

}  // namespace

rope_error* rope_reply_tensor(const rope_reply* reply, size_t index, rope_result* result) {
  return rope::c::Guarded([&]() -> Status {
    if (Status status = rope::c::CheckGiven(reply, "reply"); !status.ok()) return status;
    const auto& tensors = reply->reply.tensors;
    if (index >= tensors.size()) {
      return rope::c::Invalid("index", std::to_string(index),
                              "less than " + std::to_string(tensors.size()));
    }
    if (reply->IsGivenAway(index)) return rope::c::GivenAwayBefore(index);
    const rope::client::RotatedTensor& tensor = tensors[index];
    rope_result given = ROPE_RESULT_INIT;
    given.data = tensor.data;
    given.bytes = tensor.bytes;
    given.shape = tensor.shape.data();
    given.layout = tensor.layout.c_str();
    given.rank = static_cast<int32_t>(tensor.shape.size());
    given.dtype = rope::c::NumberOf(tensor.dtype);
    given.role = NumberOf(tensor.role);
    given.is_owned = tensor.owned != nullptr ? 1 : 0;
    given.fp8_scale = tensor.fp8_scale.value_or(0);
    return rope::c::WriteStruct(given, "result", result);
  });
}

size_t rope_reply_tensor_count(const rope_reply* reply) {
  return reply == nullptr ? 0 : reply->reply.tensors.size();
}

const char* rope_reply_request_id(const rope_reply* reply) {
  return reply == nullptr ? "" : reply->reply.request_id.c_str();
}

const char* rope_reply_device(const rope_reply* reply) {
  return reply == nullptr ? "" : reply->reply.device.c_str();
}

double rope_reply_attention_factor(const rope_reply* reply) {
  return reply == nullptr ? 0 : reply->reply.attention_factor;
}

int32_t rope_reply_attention_factor_applied(const rope_reply* reply) {
  return reply != nullptr && reply->reply.attention_factor_applied ? 1 : 0;
}

size_t rope_reply_warning_count(const rope_reply* reply) {
  return reply == nullptr ? 0 : reply->reply.warnings.size();
}

const char* rope_reply_warning(const rope_reply* reply, size_t index) {
  return reply == nullptr ? nullptr : rope::c::TextAt(reply->reply.warnings, index);
}

void rope_reply_free(rope_reply* reply) {
  delete reply;
}
