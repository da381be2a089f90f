#include "client/cli/diagnose/believed_config.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/local_describe.h"
#include "client/error.h"
#include "kernels/config/presets.h"

namespace rope::client {
namespace {

Status NoRotation() {
  return Status(StatusCode::kFailedPrecondition,
                "config: got a layer without rotary embedding, want one that rotates");
}

// The layer that the spec chooses in its config.json or preset.
Result<BelievedConfig> FromSpec(const RopeSpec& spec) {
  auto rope = ReadRope(spec);
  if (!rope.ok()) return ToStatus(rope.status());
  if (!rope->layer.rotates) return NoRotation();
  return BelievedConfig{.config = std::move(rope->layer.config),
                        .pairing = rope->pairing.value_or(Pairing::kHalf)};
}

Result<BelievedConfig> FromPreset(const RopeSpec& spec) {
  if (kernels::FindPreset(spec.model) != nullptr) return FromSpec(spec);
  return UnknownPreset(spec.model);
}

Result<BelievedConfig> FromServer(const Arguments& arguments, const RopeSpec& spec,
                                  int64_t head_dim) {
  const Result<Client> client = ConnectTo(arguments);
  if (!client.ok()) return client.status();
  const Result<DescribeReply> reply =
      client->Describe({.rope = spec, .head_dim = head_dim}, CallOptionsOf(arguments));
  if (!reply.ok()) return reply.status();
  if (!reply->rotates) return NoRotation();
  return BelievedConfig{.config = reply->config,
                        .pairing = reply->pairing.value_or(Pairing::kHalf)};
}

}  // namespace

Result<RopeSpec> BelievedSpecOf(const Arguments& arguments, int64_t head_dim) {
  for (const char* flag : {"model", "config", "config_id", "layer", "layer_type", "sub_config"}) {
    if (!arguments.Has(flag)) continue;
    Result<RopeSpec> spec = RopeSpecOf(arguments);
    if (!spec.ok() || spec->config_id.empty() || arguments.Has("target")) return spec;
    return Status(StatusCode::kInvalidArgument,
                  "--config_id: got it without --target, want the server that gave it");
  }
  const auto pairing = PairingOf(arguments);
  if (!pairing.ok()) return pairing.status();
  RopeSpec spec;
  spec.config = RopeConfig{.head_dim = head_dim};
  spec.pairing = *pairing;
  return spec;
}

Result<BelievedConfig> BelievedConfigOf(const RopeSpec& spec, const Arguments& arguments,
                                        int64_t head_dim) {
  if (arguments.Has("config")) return FromSpec(spec);
  if (!spec.config.has_value()) {
    return arguments.Has("target") ? FromServer(arguments, spec, head_dim) : FromPreset(spec);
  }
  return BelievedConfig{.config = *spec.config, .pairing = spec.pairing.value_or(Pairing::kHalf)};
}

}  // namespace rope::client
