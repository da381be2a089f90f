// Converts the structs of the public headers to and from the messages of proto/rope/v1, except
// tensors.
//
// Threading:  Functions only.
#ifndef ROPE_CLIENT_CODEC_MESSAGES_H_
#define ROPE_CLIENT_CODEC_MESSAGES_H_

#include <vector>

#include "rope/client.h"
#include "rope/v1/config.pb.h"
#include "rope/v1/describe.pb.h"
#include "rope/v1/rope_service.pb.h"

namespace rope::client {

v1::DType ToMessage(DType dtype);
v1::Pairing ToMessage(Pairing pairing);
// REQUIRES: `message` is empty.
void SetRope(const RopeSpec& spec, v1::RopeSpec& message);
v1::DescribeRequest ToMessage(const DescribeRequest& request);

DescribeReply FromMessage(const v1::DescribeResponse& message);
// The message that FromMessage made `reply` of, where it came from a server.
v1::DescribeResponse ToMessage(const DescribeReply& reply);
std::vector<Model> FromMessage(const v1::ListModelsResponse& message);
ServerInfo FromMessage(const v1::GetServerInfoResponse& message);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_MESSAGES_H_
