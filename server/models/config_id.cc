#include "server/models/config_id.h"

#include "absl/strings/str_cat.h"
#include "rope/v1/describe.pb.h"
#include "server/models/message_hash.h"
#include "server/models/rope_spec.h"

namespace rope::server {
namespace {

// Raise the number when the canonical form changes: old ids then name nothing.
constexpr absl::string_view kFormat = "rope.v1/config_id/1";

}  // namespace

std::string ConfigIdOf(const kernels::LayerRope& rope) {
  v1::DescribeResponse canonical;
  *canonical.mutable_config() = WriteRopeConfig(rope.layer.config);
  canonical.set_precision(WritePrecision(rope.layer.config.precision));
  canonical.set_pairing(WritePairing(rope.pairing));
  canonical.set_channel_order(WritePairing(rope.layer.channel_order));
  canonical.set_layer_type(rope.layer.layer_type);
  canonical.set_rotates(rope.layer.rotates);
  return HashId(absl::StrCat(kFormat, CanonicalBytes(canonical)));
}

}  // namespace rope::server
