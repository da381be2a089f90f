#include "server/control/fingerprint.h"

#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/compat/rope_readings.h"
#include "kernels/identity/key_comparison.h"
#include "kernels/identity/key_identity.h"
#include "kernels/status_macros.h"
#include "proto/wire/message_hash.h"
#include "proto/wire/rope_config.h"
#include "server/control/limits.h"
#include "server/error.h"
#include "server/request/array_reader.h"

namespace rope::server {
namespace {

constexpr size_t kEngineBytesMax = 128;

absl::StatusOr<kernels::KeyOptions> ReadOptions(const v1::KeySource& source) {
  kernels::KeyOptions options;
  if (!source.engine().empty()) {
    if (source.engine().size() > kEngineBytesMax) {
      return InvalidField("engine", absl::StrCat(source.engine().size(), " bytes"),
                          "NAME or NAME@VERSION");
    }
    ROPE_ASSIGN_OR_RETURN(options.engine, kernels::ParseEngine(source.engine()));
  }
  if (source.has_max_model_len()) {
    if (source.max_model_len() < 1) {
      return InvalidField("max_model_len", source.max_model_len(), "a length of 1 or more");
    }
    options.max_model_len = source.max_model_len();
  }
  if (source.dtype() != v1::DTYPE_UNSPECIFIED) {
    ROPE_ASSIGN_OR_RETURN(options.dtype, ReadDType(source.dtype(), "dtype"));
  }
  if (source.has_head_dim()) {
    if (source.head_dim() < 2) {
      return InvalidField("head_dim", source.head_dim(), "2 channels or more");
    }
    options.head_dim = source.head_dim();
  }
  return options;
}

// An error of the config gets the path of the config; the others are of the source's own fields.
absl::Status InSource(const v1::KeySource& source, const std::string& config_field,
                      const absl::Status& status) {
  const proto::ErrorParts parts = proto::PartsOf(status);
  const bool own = parts.field == "engine" || parts.field == "max_model_len" ||
                   parts.field == "rope" ||
                   (parts.field == "head_dim" && (source.has_head_dim() || parts.got == "nothing"));
  return own ? status : InField(config_field, status);
}

absl::StatusOr<kernels::KeyIdentity> Identify(const v1::KeySource& source,
                                              ModelRegistry& registry) {
  std::string field;
  ROPE_ASSIGN_OR_RETURN(kernels::KeyOptions options, ReadOptions(source));
  ROPE_ASSIGN_OR_RETURN(const Model model, registry.CopyOf(source.rope(), field));
  ROPE_ASSIGN_OR_RETURN(options.pairing, proto::ReadPairing(source.rope().pairing()));
  if (!options.pairing.has_value()) options.pairing = model.pairing;
  absl::StatusOr<kernels::IdentifiedKey> key = std::visit(
      [&](const auto& config) { return kernels::IdentifyKey(config, options); }, model.config);
  if (!key.ok()) return InSource(source, field, key.status());
  key->identity.fingerprint = proto::HashId(key->text);
  return std::move(key->identity);
}

void Write(const kernels::KeyRows& rows, v1::KeyRows& message) {
  message.set_rotates(rows.rotates);
  if (!rows.rotates) return;
  message.set_pairing(proto::WritePairing(rows.pairing));
  message.set_channel_order(proto::WritePairing(rows.channel_order));
  message.set_head_dim(rows.head_dim);
  message.set_rotary_offset(rows.rotary_offset);
  message.set_rotary_dim(rows.rotary_dim);
  message.set_factor(rows.factor);
  message.mutable_inv_freq()->Add(rows.inv_freq.begin(), rows.inv_freq.end());
  message.mutable_axes()->Add(rows.axes.begin(), rows.axes.end());
  message.set_by_length(rows.by_length);
  message.mutable_long_inv_freq()->Add(rows.long_inv_freq.begin(), rows.long_inv_freq.end());
  message.set_xpos(rows.xpos);
}

void Write(const kernels::KeyIdentity& key, v1::KeyIdentity& message) {
  message.set_fingerprint(key.fingerprint);
  message.set_engine(key.engine);
  message.set_version(key.version);
  message.set_dtype(key.dtype);
  message.set_table_dtype(key.table_dtype);
  for (const kernels::KeyRows& rows : key.rows) Write(rows, *message.add_rows());
  message.mutable_layers()->Add(key.layers.begin(), key.layers.end());
  for (const std::string& type : key.layer_types) message.add_layer_types(type);
  for (const std::string& note : key.notes) message.add_notes(note);
}

absl::StatusOr<kernels::KeyIdentity> IdentifyAt(absl::string_view path, const v1::KeySource& source,
                                                ModelRegistry& registry) {
  absl::StatusOr<kernels::KeyIdentity> key = Identify(source, registry);
  if (!key.ok()) return Prefixed(path, key.status());
  return key;
}

}  // namespace

absl::StatusOr<v1::FingerprintResponse> Fingerprint(const v1::FingerprintRequest& request,
                                                    ModelRegistry& registry,
                                                    AdmitFingerprint admit) {
  ROPE_RETURN_IF_ERROR(admit((request.has_other() ? 2 : 1) * limits::kIdentityBytesMax));
  v1::FingerprintResponse response;
  ROPE_ASSIGN_OR_RETURN(const auto key, IdentifyAt("key.", request.key(), registry));
  Write(key, *response.mutable_key());
  if (!request.has_other()) return response;
  ROPE_ASSIGN_OR_RETURN(const auto other, IdentifyAt("other.", request.other(), registry));
  Write(other, *response.mutable_other());
  const kernels::KeyComparison comparison = kernels::CompareKeys(key, other);
  response.mutable_comparison()->set_match(static_cast<v1::KeyMatch>(comparison.match));
  for (const std::string& difference : comparison.differences) {
    response.mutable_comparison()->add_differences(difference);
  }
  return response;
}

}  // namespace rope::server
