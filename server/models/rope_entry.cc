#include "server/models/rope_entry.h"

#include "kernels/canonical_text.h"
#include "kernels/config/kept_bytes.h"
#include "proto/wire/message_hash.h"
#include "server/models/rope_spec.h"

namespace rope::server {

absl::StatusOr<std::shared_ptr<const kernels::ResolvedRope>> RopeEntry::Resolve(
    std::optional<int64_t> head_dim) const {
  if (resolved_ != nullptr) return resolved_;
  auto resolved = kernels::Resolve(rope_.layer.config, head_dim);
  if (!resolved.ok()) return InField(field_, resolved.status());
  return resolved;
}

void RopeEntry::Complete() {
  config_id_ = proto::HashId(kernels::CanonicalText(rope_));
  using kernels::KeptBytes;
  bytes_ = static_cast<int64_t>(sizeof(RopeEntry)) + KeptBytes(config_id_) + KeptBytes(field_) +
           rope_.layer.KeptBytes() + KeptBytes(rope_.stated) + KeptBytes(rope_.warnings);
  if (resolved_ != nullptr) bytes_ += resolved_->KeptBytes();
}

}  // namespace rope::server
