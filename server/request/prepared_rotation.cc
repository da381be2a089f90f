#include "server/request/prepared_rotation.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "proto/wire/message_hash.h"
#include "server/error.h"
#include "server/request/tensor_reader.h"
#include "server/request/validate.h"

namespace rope::server {
namespace {

// Raise the number when the hashed form changes: old ids then name nothing.
constexpr absl::string_view kFormat = "rope.v1/prepared_id/1";

// Prepare keeps the result of the first stage of validation (validate.h), and BeginCall copies it
// for the others, so that a call is accepted if and only if the same request in one message is.

absl::Status CheckUnset(bool is_set, absl::string_view field) {
  if (!is_set) return absl::OkStatus();
  return InvalidField(field, "a value", "it unset: each call brings it");
}

// The arrays of a message. Reflection would take as long as the rest of BeginCall.
template <typename Message>
struct ArrayField {
  absl::string_view name;
  bool (Message::*has)() const;
  const v1::Array& (Message::*get)() const;
  v1::Array* (Message::*mutable_get)();
};
constexpr ArrayField<v1::Rows> kRowFields[] = {
    {"cos_sin", &v1::Rows::has_cos_sin, &v1::Rows::cos_sin, &v1::Rows::mutable_cos_sin},
    {"angles", &v1::Rows::has_angles, &v1::Rows::angles, &v1::Rows::mutable_angles},
    {"cos", &v1::Rows::has_cos, &v1::Rows::cos, &v1::Rows::mutable_cos},
    {"sin", &v1::Rows::has_sin, &v1::Rows::sin, &v1::Rows::mutable_sin}};
using Paged = v1::PagedTokens;
constexpr ArrayField<Paged> kPagedFields[] = {
    {"pages", &Paged::has_pages, &Paged::pages, &Paged::mutable_pages},
    {"target_slots", &Paged::has_target_slots, &Paged::target_slots, &Paged::mutable_target_slots},
    {"slots", &Paged::has_slots, &Paged::slots, &Paged::mutable_slots}};

absl::Status CheckHasNoElements(const v1::Array& array, absl::string_view field) {
  constexpr int kAxesMax = 8;  // each call copies them
  ROPE_RETURN_IF_ERROR(CheckUnset(CameAsBytes(array) || array.numbers_size() > 0, field));
  const int axes = std::max(array.shape_size(), array.strides_size());
  if (axes <= kAxesMax) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(axes, " axes"), absl::StrCat("at most ", kAxesMax));
}

absl::Status CheckHasNoValues(const v1::RotateRequest& message) {
  ROPE_RETURN_IF_ERROR(CheckUnset(!message.prepared_id().empty(), "prepared_id"));
  ROPE_RETURN_IF_ERROR(CheckUnset(!message.request_id().empty(), "request_id"));
  ROPE_RETURN_IF_ERROR(CheckUnset(message.labels_size() > 0, "labels"));
  ROPE_RETURN_IF_ERROR(CheckUnset(message.has_positions(), "positions"));
  ROPE_RETURN_IF_ERROR(CheckUnset(message.reposition().has_from(), "reposition.from"));
  ROPE_RETURN_IF_ERROR(CheckUnset(message.reposition().has_by(), "reposition.by"));
  ROPE_RETURN_IF_ERROR(CheckUnset(message.output().regions_size() > 0, "output.regions"));
  for (const auto& field : kRowFields) {
    ROPE_RETURN_IF_ERROR(
        CheckHasNoElements((message.rows().*field.get)(), absl::StrCat("rows.", field.name)));
  }
  for (int i = 0; i < message.tensors_size(); ++i) {
    const v1::Tensor& tensor = message.tensors(i);
    const std::string path = absl::StrCat("tensors[", i, "]");
    ROPE_RETURN_IF_ERROR(CheckHasNoElements(tensor.array(), path + ".array"));
    for (const auto& field : kPagedFields) {
      ROPE_RETURN_IF_ERROR(CheckHasNoElements((tensor.paged_tokens().*field.get)(),
                                              absl::StrCat(path, ".paged_tokens.", field.name)));
    }
    if (tensor.norm().weight().has_region()) {
      return InvalidField(absl::StrCat(path, ".norm.weight"), "a region", "raw or numbers");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOpenAxis(const v1::PrepareRequest& request, const PreparedRotation& prepared) {
  const std::string& axis = request.open_axis();
  if (axis.empty()) return absl::OkStatus();
  if (axis != "B" && axis != "S" && axis != "T") {
    return InvalidField("open_axis", absl::StrCat("\"", axis, "\""), "B, S or T");
  }
  const Layout& layout = prepared.plan.tensors.front().layout;
  if (!layout.Has(axis[0])) {
    return InvalidField("open_axis", axis, absl::StrCat("an axis of layout ", layout.letters));
  }
  if (prepared.ropes.layers.differ()) {
    return InvalidField("open_axis", "it with layers that differ in their frequencies",
                        "it unset, or a request for each layer");
  }
  return absl::OkStatus();
}

// The bytes of the request's norm weights, which are the only payloads of a prepared request.
std::string PayloadBytes(const proto::SplitMessage& payloads) {
  std::string bytes;
  for (const proto::FragmentedBytes& payload : payloads.payloads) {
    absl::StrAppend(&bytes, payload.bytes, ":");
    for (const std::string_view fragment : payload.fragments) bytes += fragment;
  }
  return bytes;
}

// A hash of everything that the answers to calls depend on. Configs are in it by what they mean
// (config_id), and specs by what their warnings and their model's name say. Beside rows a spec is a
// pairing alone.
std::string IdOf(const v1::PrepareRequest& request, const proto::SplitMessage& payloads,
                 const RopeEntries& entries, const Plan& plan) {
  v1::PrepareRequest canonical = request;
  v1::RotateRequest& rotate = *canonical.mutable_rotate();
  std::string text = absl::StrCat(kFormat, "\n", rotate.rope().model(), "\n",
                                  rotate.reposition().from_rope().model(), "\n");
  if (!rotate.has_rows()) rotate.clear_rope();
  rotate.mutable_reposition()->clear_from_rope();
  for (const auto& entry : entries) absl::StrAppend(&text, entry->config_id(), "\n");
  for (const std::string& warning : plan.warnings) absl::StrAppend(&text, warning, "\n");
  return proto::HashId(
      absl::StrCat(text, proto::CanonicalBytes(canonical), PayloadBytes(payloads)));
}

// The embeddings are counted even if another entry or the registry keeps them too: they may be
// dropped there. The row sets' frequencies are parts of them.
int64_t BytesOf(const PreparedRotation& prepared) {
  size_t bytes = sizeof(PreparedRotation) + prepared.message.SpaceUsedLong();
  for (const TensorPlan& tensor : prepared.plan.tensors) {
    bytes += sizeof(TensorPlan) + tensor.heads.size() * sizeof(HeadSpan);
    if (tensor.norm_weight != nullptr) bytes += tensor.norm_weight->size() * sizeof(float);
  }
  for (const std::string& warning : prepared.plan.warnings) bytes += warning.size();
  const Ropes& ropes = prepared.ropes;
  for (const auto& entry : {ropes.entry, ropes.from_entry}) {
    if (entry != nullptr) bytes += static_cast<size_t>(entry->bytes());
  }
  const auto layers = ropes.layers.by_layer();
  absl::flat_hash_set<ResolvedPtr> resolved(layers.begin(), layers.end());
  resolved.insert({ropes.resolved, ropes.from_resolved});
  for (const ResolvedPtr& rope : resolved) {
    if (rope != nullptr) bytes += static_cast<size_t>(rope->KeptBytes());
  }
  return static_cast<int64_t>(bytes + layers.size() * sizeof(ResolvedPtr));
}

// The fields of a call's tensor that are no values.
absl::Status CheckTensorValues(const v1::Tensor& tensor, const PreparedRotation& prepared,
                               int index) {
  const v1::Array& array = tensor.array();
  const v1::PagedTokens& paged = tensor.paged_tokens();
  const bool is_open = prepared.open_axis != 0;
  const auto path = [index](absl::string_view field) {
    return absl::StrCat("tensors[", index, "]", field);
  };
  const bool head = tensor.role() != v1::ROLE_UNSPECIFIED || !tensor.layout().empty() ||
                    tensor.head_ranges_size() > 0 || tensor.has_norm() || tensor.has_scale() ||
                    tensor.has_llama4_scaling_beta() || tensor.fp8_scales_size() > 0 ||
                    tensor.has_rotary_offset() || tensor.saturated() != 0;
  const bool has_pages = prepared.message.tensors(index).has_paged_tokens();
  const bool paging = (tensor.has_paged_tokens() && !has_pages) || paged.block_size() != 0 ||
                      paged.page_stride() != 0 || paged.token_stride() != 0 ||
                      paged.head_stride() != 0 || paged.layer_stride() != 0 ||
                      paged.pool_elements() != 0;
  const bool type = array.dtype() != v1::DTYPE_UNSPECIFIED || array.strides_size() > 0;
  if (head || paging) {
    return InvalidField(path(""), "more than `array` with prepared_id",
                        "array, and what paged_tokens has for each token");
  }
  if (type || (array.shape_size() > 0 && !is_open)) {
    return InvalidField(
        path(".array"), "a dtype, shape or strides with prepared_id",
        is_open ? "shape, and raw, numbers or region" : "one of raw, numbers, region");
  }
  return absl::OkStatus();
}

absl::Status CheckIsCall(const v1::RotateRequest& call, const PreparedRotation& prepared) {
  const v1::Output& output = call.output();
  for (const auto& [is_set, field] :
       {std::pair(call.has_rope(), "rope"),
        std::pair(call.operation() != v1::OPERATION_UNSPECIFIED, "operation"),
        std::pair(call.reposition().has_from_rope(), "reposition.from_rope"),
        std::pair(call.skip_attention_factor(), "skip_attention_factor"),
        std::pair(call.has_rows() && !prepared.message.has_rows(), "rows"),
        std::pair(output.dtype() != v1::DTYPE_UNSPECIFIED, "output.dtype"),
        std::pair(output.in_place(), "output.in_place"),
        std::pair(output.layouts_size() > 0, "output.layouts"),
        std::pair(output.strides_size() > 0, "output.strides"),
        std::pair(output.channel_order() != v1::PAIRING_UNSPECIFIED, "output.channel_order")}) {
    if (!is_set) continue;
    return InvalidField(field, "it with prepared_id", "it unset: the prepared request has it");
  }
  if (call.tensors_size() != prepared.message.tensors_size()) {
    return InvalidField("tensors", call.tensors_size(),
                        absl::StrCat(prepared.message.tensors_size(), ", as prepared"));
  }
  for (int i = 0; i < call.tensors_size(); ++i) {
    ROPE_RETURN_IF_ERROR(CheckTensorValues(call.tensors(i), prepared, i));
  }
  return absl::OkStatus();
}

// Gives the arrays of a call's rows or paged_tokens what was prepared of them. A call may be
// planned twice. The error names the field in `path`.
template <typename Message, size_t count>
absl::Status CompleteArrays(const ArrayField<Message> (&fields)[count], const Message& prepared,
                            bool is_open, absl::string_view path, Message& call) {
  for (const ArrayField<Message>& field : fields) {
    if (!(prepared.*field.has)() || !(call.*field.has)()) continue;
    const v1::Array& want = (prepared.*field.get)();
    v1::Array& array = *(call.*field.mutable_get)();
    if (array.dtype() == v1::DTYPE_UNSPECIFIED) array.set_dtype(want.dtype());
    if (array.shape().empty()) *array.mutable_shape() = want.shape();
    if (array.strides().empty()) *array.mutable_strides() = want.strides();
    if (array.dtype() == want.dtype() && std::ranges::equal(array.strides(), want.strides()) &&
        (is_open || std::ranges::equal(array.shape(), want.shape()))) {
      continue;
    }
    return InvalidField(absl::StrCat(path, ".", field.name),
                        "another dtype, shape or strides with prepared_id", "the prepared ones");
  }
  return absl::OkStatus();
}

// The length of the open axis in a call. Every other length must be the prepared one.
absl::StatusOr<int64_t> OpenLength(const v1::RotateRequest& call,
                                   const PreparedRotation& prepared) {
  std::optional<int64_t> length;
  for (int i = 0; i < call.tensors_size(); ++i) {
    const auto& shape = call.tensors(i).array().shape();
    const v1::Tensor& tensor = prepared.message.tensors(i);
    const size_t axis = tensor.layout().find(prepared.open_axis);
    std::vector<int64_t> want(tensor.array().shape().begin(), tensor.array().shape().end());
    const bool same_axes = shape.size() == static_cast<int>(want.size());
    const int64_t got = same_axes ? shape.Get(static_cast<int>(axis)) : -1;
    const bool is_within = got >= 0 && got <= length.value_or(want[axis]);
    if (is_within) want[axis] = length.value_or(got);
    if (!is_within || !std::ranges::equal(shape, want)) {
      return InvalidField(
          absl::StrCat("tensors[", i, "].array.shape"), Brackets(shape),
          absl::StrCat("at most ", Brackets(want), ", less only along ",
                       absl::string_view(&prepared.open_axis, 1), ", as tensors[0]"));
    }
    length = got;
  }
  return *length;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const PreparedRotation>> Prepare(const v1::PrepareRequest& request,
                                                                const proto::SplitMessage& payloads,
                                                                ModelRegistry& registry) {
  auto prepared = std::make_shared<PreparedRotation>();
  const v1::RotateRequest& rotate = request.rotate();
  ArraySource source(payloads);
  absl::Status status = CheckHasNoValues(rotate);
  if (status.ok()) {
    status = PrepareFixed(rotate, source, registry, prepared->ropes, prepared->plan);
  }
  if (!status.ok()) return Prefixed("rotate.", status);
  ROPE_RETURN_IF_ERROR(CheckOpenAxis(request, *prepared));
  if (!request.open_axis().empty()) prepared->open_axis = request.open_axis()[0];
  prepared->message = rotate;
  for (v1::Tensor& tensor : *prepared->message.mutable_tensors()) {
    if (tensor.has_norm()) tensor.mutable_norm()->clear_weight();  // the plan has it
  }
  RopeEntries entries = std::exchange(prepared->ropes.entries, {});  // calls need none of them
  for (const auto& entry : {prepared->ropes.entry, prepared->ropes.from_entry}) {
    if (entry != nullptr) entries.push_back(entry);
  }
  prepared->id = IdOf(request, payloads, entries, prepared->plan);
  prepared->bytes = BytesOf(*prepared);
  return prepared;
}

absl::Status BeginCall(const PreparedRotation& prepared, v1::RotateRequest& call, Plan& plan) {
  ROPE_RETURN_IF_ERROR(CheckIsCall(call, prepared));
  const bool is_open = prepared.open_axis != 0;
  if (call.has_rows()) {
    ROPE_RETURN_IF_ERROR(
        CompleteArrays(kRowFields, prepared.message.rows(), is_open, "rows", *call.mutable_rows()));
  }
  for (int i = 0; i < call.tensors_size(); ++i) {
    if (!call.tensors(i).has_paged_tokens()) continue;
    const absl::Status status =
        CompleteArrays(kPagedFields, prepared.message.tensors(i).paged_tokens(), is_open,
                       "paged_tokens", *call.mutable_tensors(i)->mutable_paged_tokens());
    if (!status.ok()) return Prefixed(absl::StrCat("tensors[", i, "]."), status);
  }
  plan = prepared.plan;
  if (!is_open) return absl::OkStatus();
  ROPE_ASSIGN_OR_RETURN(const int64_t length, OpenLength(call, prepared));
  ROPE_RETURN_IF_ERROR(Resize(prepared.message, prepared.open_axis, length, plan));
  for (RowSet& set : plan.row_sets) {
    ROPE_CHECK(set.runs.size() <= 1);  // PrepareRotation
    for (TokenRun& run : set.runs) run.end = plan.tokens;
  }
  return absl::OkStatus();
}

absl::Status PreparedRotations::Keep(std::shared_ptr<const PreparedRotation> prepared,
                                     const std::string& owner) {
  ROPE_RETURN_IF_ERROR(CheckAtMost(prepared->bytes, options_.bytes_max / 2, "rotate",
                                   " bytes of memory to keep it prepared",
                                   ", or the whole request in each call"));
  proto::WriterMutexLock lock(&mutex_);
  Entry& entry = entries_[prepared->id];
  if (entry.prepared == nullptr) {
    ++all_.entries;
  } else {
    all_.bytes -= entry.prepared->bytes;
  }
  all_.bytes += prepared->bytes;
  entry.owner = owner;
  entry.used.store(clock_.fetch_add(1) + 1);
  entry.prepared = std::move(prepared);
  Shrink();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const PreparedRotation>> PreparedRotations::Find(
    absl::string_view id) {
  {
    proto::ReaderMutexLock lock(&mutex_);
    const auto found = entries_.find(id);
    if (found != entries_.end()) {
      found->second.used.store(clock_.fetch_add(1, std::memory_order_relaxed) + 1,
                               std::memory_order_relaxed);
      return found->second.prepared;
    }
  }
  return MakeError(Reason::kPreparedNotFound, "prepared_id", absl::StrCat("\"", id, "\""),
                   "one from Prepare, or the whole request");
}

PreparedRotations::Size PreparedRotations::size() const {
  proto::ReaderMutexLock lock(&mutex_);
  return all_;
}

// Sorts the entries once: one large entry may take the place of a thousand small ones.
void PreparedRotations::Shrink() {
  if (!IsFull()) return;
  struct Owned {
    Size size = {};
    std::vector<Entries::iterator> entries = {};  // the least recently used last
  };
  absl::flat_hash_map<absl::string_view, Owned> owners;
  std::vector<Entries::iterator> latest_first;
  for (auto it = entries_.begin(); it != entries_.end(); ++it) latest_first.push_back(it);
  std::ranges::sort(latest_first, std::greater<>(),
                    [](const auto& it) { return it->second.used.load(); });
  for (const auto& it : latest_first) {
    Owned& owned = owners[it->second.owner];
    ++owned.size.entries;
    owned.size.bytes += it->second.prepared->bytes;
    owned.entries.push_back(it);
  }
  while (IsFull()) {
    const auto of = all_.bytes > options_.bytes_max ? &Size::bytes : &Size::entries;
    const auto greed = [of](const auto& owner) {
      return std::pair(owner.second.size.*of, -owner.second.entries.back()->second.used.load());
    };
    const auto most = std::ranges::max_element(owners, {}, greed);
    const auto oldest = most->second.entries.back();
    most->second.entries.pop_back();
    for (Size* const size : {&all_, &most->second.size}) {
      --size->entries;
      size->bytes -= oldest->second.prepared->bytes;
    }
    if (most->second.entries.empty()) owners.erase(most);
    entries_.erase(oldest);
  }
}

}  // namespace rope::server
