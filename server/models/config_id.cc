#include "server/models/config_id.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <openssl/sha.h>

#include <array>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "rope/v1/describe.pb.h"
#include "server/models/rope_spec.h"

namespace rope::server {
namespace {

// Raise the number when the canonical form changes: old ids then name nothing.
constexpr absl::string_view kFormat = "rope.v1/config_id/1";
constexpr size_t kIdBytes = 16;

std::string Serialized(const v1::DescribeResponse& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

}  // namespace

std::string ConfigIdOf(const kernels::LayerRope& rope) {
  v1::DescribeResponse canonical;
  *canonical.mutable_config() = WriteRopeConfig(rope.layer.config);
  canonical.set_precision(WritePrecision(rope.layer.config.precision));
  canonical.set_pairing(WritePairing(rope.pairing));
  canonical.set_channel_order(WritePairing(rope.layer.channel_order));
  canonical.set_layer_type(rope.layer.layer_type);
  canonical.set_rotates(rope.layer.rotates);
  const std::string bytes = absl::StrCat(kFormat, Serialized(canonical));
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), kIdBytes));
}

}  // namespace rope::server
