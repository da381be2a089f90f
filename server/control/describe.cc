#include "server/control/describe.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/compat/rope_readings.h"
#include "kernels/describe.h"
#include "kernels/identity/key_identity.h"
#include "proto/wire/message_hash.h"
#include "proto/wire/rope_config.h"
#include "server/request/array_reader.h"
#include "server/request/positions.h"

namespace rope::server {
namespace {

// Pairs of cos and sin per step: about half a millisecond.
constexpr int64_t kPairsPerStep = 2048;

struct DescribePlan {
  std::shared_ptr<const RopeEntry> entry;
  ResolvedPtr resolved;              // null: the layer does not rotate
  kernels::DescribeOptions options;  // without positions; seq_len is set
  std::vector<int64_t> positions;    // of the rows
};

absl::Status CheckRanges(const v1::DescribeRequest& request) {
  if (request.positions_size() > kDescribePositionsMax) {
    return InvalidField("positions", absl::StrCat(request.positions_size(), " positions"),
                        absl::StrCat("at most ", kDescribePositionsMax));
  }
  for (const int64_t position : request.positions()) {
    ROPE_RETURN_IF_ERROR(CheckPosition(position, "positions"));
  }
  if (!request.has_seq_len()) return absl::OkStatus();
  if (request.seq_len() >= 1 && request.seq_len() <= limits::kSeqLenMax) return absl::OkStatus();
  return InvalidField("seq_len", request.seq_len(),
                      absl::StrCat("a length from 1 to ", limits::kSeqLenMax));
}

// What the request asks for, if the embedding has it.
absl::StatusOr<kernels::DescribeOptions> OptionsOf(const v1::DescribeRequest& request,
                                                   const RopeEntry& entry,
                                                   const kernels::ResolvedRope* resolved) {
  kernels::DescribeOptions options;
  options.positions = request.positions();
  if (request.has_seq_len()) options.seq_len = request.seq_len();
  if (resolved == nullptr) return options;
  ROPE_ASSIGN_OR_RETURN(options.row_dtype,
                        ReadRowDType(request.dtype(), resolved->config().precision));
  options.sinusoidal = request.sinusoidal();
  if (!options.sinusoidal) return options;
  ROPE_RETURN_IF_ERROR(CheckSinusoidal(*resolved));
  if (!entry.pairing().has_value()) {
    return InvalidField("rope.pairing", "nothing",
                        "PAIRING_HALF or PAIRING_INTERLEAVED: this config does not say");
  }
  return options;
}

// Columns of the embedding; 0: it does not rotate.
int64_t ColumnsOf(const DescribePlan& plan) {
  return plan.resolved == nullptr ? 0 : plan.resolved->rotary_dim() / 2;
}

// The memory of a call: its rows, twice while the answer is encoded, and for each column its
// frequency, wavelength, scaling and parameters, computed and encoded.
absl::Status AdmitAnswer(const DescribePlan& plan, int64_t reply_bytes_max, AdmitReply admit) {
  constexpr int64_t kColumnBytes = 128;
  constexpr int64_t kRowHeadBytes = 32;  // the position, and the lengths of the lists
  const int64_t columns = ColumnsOf(plan);
  const int64_t numbers = plan.options.sinusoidal ? 4 : 2;  // of each column
  const int64_t row_bytes =
      kRowHeadBytes + columns * numbers * static_cast<int64_t>(sizeof(double));
  const auto rows = columns == 0 ? int64_t{0} : static_cast<int64_t>(plan.positions.size());
  const int64_t bytes_max = std::min(kDescribeBytesMax, reply_bytes_max);
  if (rows * row_bytes > bytes_max) {
    return MakeError(Reason::kLimitExceeded, "positions",
                     absl::StrCat(rows, " rows of ", row_bytes, " bytes"),
                     absl::StrCat("at most ", bytes_max, " bytes in one call"));
  }
  return admit(2 * rows * row_bytes + columns * kColumnBytes);
}

class DescribeAnswer {
 public:
  explicit DescribeAnswer(DescribePlan plan) : plan_(std::move(plan)), columns_(ColumnsOf(plan_)) {}

  absl::StatusOr<bool> Step(v1::DescribeResponse& response) {
    if (rows_.has_value()) {
      AddRows(response);
    } else {
      ROPE_RETURN_IF_ERROR(DescribeAll(response));
    }
    return columns_ == 0 || next_ == plan_.positions.size();
  }

 private:
  // Everything but the rows.
  absl::Status DescribeAll(v1::DescribeResponse& response) {
    ROPE_ASSIGN_OR_RETURN(
        DescribeReply reply,
        kernels::Describe(plan_.entry->rope(), plan_.resolved.get(), plan_.options));
    reply.config_id = plan_.entry->config_id();
    response = proto::WriteDescribeReply(reply);
    if (columns_ > 0) rows_.emplace(plan_.entry->rope(), *plan_.resolved, plan_.options);
    return absl::OkStatus();
  }

  void AddRows(v1::DescribeResponse& response) {
    const auto per_step = static_cast<size_t>(std::max<int64_t>(1, kPairsPerStep / columns_));
    const size_t stop = std::min(plan_.positions.size(), next_ + per_step);
    for (; next_ < stop; ++next_) {
      proto::WriteRow(rows_->At(plan_.positions[next_]), *response.add_rows());
    }
  }

  const DescribePlan plan_;
  const int64_t columns_;
  std::optional<kernels::DescribedRows> rows_;  // unset: not described yet, or it does not rotate
  size_t next_ = 0;                             // row
};

}  // namespace

absl::StatusOr<Steps<v1::DescribeResponse>> Describe(const v1::DescribeRequest& request,
                                                     ModelRegistry& registry,
                                                     int64_t reply_bytes_max, AdmitReply admit) {
  DescribePlan plan;
  ROPE_ASSIGN_OR_RETURN(plan.entry, registry.Find(request.rope()));
  ROPE_RETURN_IF_ERROR(CheckRanges(request));
  if (plan.entry->layer().rotates) {
    ROPE_ASSIGN_OR_RETURN(plan.resolved, ResolveAsked(*plan.entry, request));
  }
  ROPE_ASSIGN_OR_RETURN(plan.options, OptionsOf(request, *plan.entry, plan.resolved.get()));
  plan.options.seq_len = kernels::SeqLenOf(plan.options);
  plan.options.positions = {};
  plan.positions.assign(request.positions().begin(), request.positions().end());
  ROPE_RETURN_IF_ERROR(AdmitAnswer(plan, reply_bytes_max, admit));
  return [answer = std::make_shared<DescribeAnswer>(std::move(plan))](
             v1::DescribeResponse& response) { return answer->Step(response); };
}

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

}  // namespace

absl::StatusOr<v1::FingerprintResponse> Fingerprint(const v1::FingerprintRequest& request,
                                                    ModelRegistry& registry, AdmitReply admit) {
  ROPE_RETURN_IF_ERROR(admit((request.has_other() ? 2 : 1) * kIdentityBytesMax));
  v1::FingerprintResponse response;
  const auto key = Identify(request.key(), registry);
  if (!key.ok()) return Prefixed("key.", key.status());
  Write(*key, *response.mutable_key());
  if (!request.has_other()) return response;
  const auto other = Identify(request.other(), registry);
  if (!other.ok()) return Prefixed("other.", other.status());
  Write(*other, *response.mutable_other());
  const kernels::KeyComparison comparison = kernels::CompareKeys(*key, *other);
  response.mutable_comparison()->set_match(static_cast<v1::KeyMatch>(comparison.match));
  for (const std::string& difference : comparison.differences) {
    response.mutable_comparison()->add_differences(difference);
  }
  return response;
}

}  // namespace rope::server
