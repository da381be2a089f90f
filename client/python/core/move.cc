// Requests of Client.move_.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "client/python/core/arguments.h"
#include "client/python/core/arrays.h"
#include "client/python/core/interpreter.h"
#include "client/python/core/request.h"
#include "rope/rotate.h"

namespace rope::python {
namespace {

namespace nb = nanobind;
using client::PagedTokens;
using client::TensorView;

// The axes of arrays by their number: those of layouts; P for pages, where T are the tokens of a
// page, or for slots. Null: no such array.
using Axes = std::array<const char*, 9>;
constexpr Axes kTokens = {nullptr, nullptr, "TD", "THD", "LTHD"};
constexpr Axes kByHead = {nullptr, nullptr, "SD", "SBD", "LSBD"};  // heads as sequences are
constexpr Axes kPages = {nullptr, nullptr, nullptr, "PTD", "PTHD", "LPTHD"};
constexpr Axes kSlots = {nullptr, nullptr, "PD", "PHD", "PTHD", "LPTHD"};

// The arrays of an argument: those of a list, itself, or none.
std::vector<nb::object> ArraysOf(nb::handle given) {
  std::vector<nb::object> arrays;
  if (nb::isinstance<nb::list>(given) || nb::isinstance<nb::tuple>(given)) {
    for (const nb::handle each : given) arrays.push_back(nb::borrow(each));
  } else if (!given.is_none()) {
    arrays.push_back(nb::borrow(given));
  }
  return arrays;
}

void AddTable(nb::handle table, Request& call) {
  const std::vector<nb::object> arrays = ArraysOf(table);
  if (arrays.empty()) return;
  if (arrays.size() > 2) {
    RaiseInvalid("table", std::to_string(arrays.size()) + " arrays", "one, or (cos, sin)");
  }
  client::Rows& rows = call.request.rows.emplace();
  for (size_t i = 0; i < arrays.size(); ++i) {
    auto& view = arrays.size() == 1 ? rows.cos_sin : i == 0 ? rows.cos : rows.sin;
    view = call.Borrow(arrays[i], "table");
  }
}

// Returns true if each head has its own positions or differences.
bool AddDistance(const Arguments& given, client::RotateRequest& request) {
  client::Reposition& move = request.reposition.emplace();
  const bool has_from = given.has("from_");
  const bool has_to = given.has("to");
  if (!given.has("by")) {
    if (!has_from || !has_to) RaiseInvalid("to, from_", "one or none", "both, or by");
    move.from = PositionsOf(given["from_"], "from_");
    request.positions = PositionsOf(given["to"], "to");
    return std::max(move.from.position_ids_shape.size(),
                    request.positions.position_ids_shape.size()) == 2;
  }
  if (has_from || has_to) RaiseInvalid("by", "it and from_ or to", "it alone");
  IntegerArray by(given["by"], "by");
  move.by = std::move(by.values);
  move.by_shape = std::move(by.shape);
  return move.by_shape.size() == 2;
}

std::vector<int64_t> IdsOf(const Arguments& given, Argument name) {
  if (!given.has(name)) return {};
  return IntegerArray(given[name], name.name()).values;
}

// The engine refuses negative ids.
void CheckIds(const std::vector<int64_t>& ids, const char* name, int64_t count) {
  const auto largest = std::max_element(ids.begin(), ids.end());
  if (largest == ids.end() || *largest < count) return;
  RaiseInvalid(name, std::to_string(*largest),
               "less than the " + std::to_string(count) + " of the pool");
}

// Sets sizes and strides. An axis of one element, or that the pool does not have, has the stride 1.
PagedTokens PoolOf(const Array& array, const std::string& letters, PagedTokens pool) {
  const std::vector<int64_t> shape = array.shape();
  const std::vector<int64_t> strides = array.strides();
  pool.page_stride = pool.token_stride = pool.head_stride = pool.layer_stride = 1;
  pool.pool_elements = 1;
  int64_t packed = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    const int64_t stride = shape[i] == 1 ? 1 : strides.empty() ? packed : strides[i];
    packed *= shape[i];
    pool.pool_elements += (shape[i] - 1) * stride;
    if (letters[i] == 'L') pool.layer_stride = stride;
    if (letters[i] == 'P') pool.page_stride = stride;
    if (letters[i] == 'T') pool.token_stride = stride;
    if (letters[i] == 'T') pool.block_size = shape[i];
    if (letters[i] == 'H') pool.head_stride = stride;
    if (letters[i] == 'D' && stride != 1) {
      RaiseInvalid(array.name() + ".strides", TextOf(strides), "1 for the channels, the last axis");
    }
  }
  return pool;
}

bool AreAlike(const PagedTokens& a, const PagedTokens& b) {
  const auto all = [](const PagedTokens& pool) {
    return std::tie(pool.block_size, pool.page_stride, pool.token_stride, pool.head_stride,
                    pool.layer_stride, pool.pool_elements);
  };
  return all(a) == all(b);
}

// The tokens of the first array, `ids`, are those of the others, too.
void AddPages(const Array& array, const Array& result, const std::string& letters,
              const PagedTokens& ids, bool is_first, std::optional<int64_t> block_size,
              TensorView& view) {
  const std::vector<int64_t> shape = array.shape();
  std::vector<int64_t> others = result.shape();
  const size_t axis = letters.find('P');
  const int64_t pages = shape[axis];
  const int64_t targets = others.size() == shape.size() ? std::exchange(others[axis], pages) : 0;
  if (others != shape) {
    RaiseInvalid(result.name() + ".shape", TextOf(result.shape()),
                 TextOf(shape) + ", with any number of pages or slots");
  }
  PagedTokens pool = PoolOf(array, letters, is_first ? ids : PagedTokens{});
  PagedTokens target = PoolOf(result, letters, {});
  if (pages == 1) pool.page_stride = target.page_stride;  // a single page has no distance
  if (targets == 1) target.page_stride = pool.page_stride;
  pool.pool_elements = target.pool_elements = std::max(pool.pool_elements, target.pool_elements);
  if (!AreAlike(pool, target)) {
    RaiseInvalid(result.name() + ".strides", "others", "those of " + array.name());
  }
  const bool has_pages = letters.find('T') != std::string::npos;
  if (block_size.has_value() && (!has_pages || block_size != pool.block_size)) {
    RaiseInvalid("block_size", std::to_string(*block_size) + " for " + TextOf(shape),
                 "the tokens of a page: view [slots, H, C] as [pages, block_size, H, C]");
  }
  // Without targets, the results lie in `result` where the tokens lie in `array`.
  const int64_t usable = ids.target_slots.empty() ? std::min(pages, targets) : pages;
  CheckIds(ids.pages, "pages", usable);
  CheckIds(ids.slots, "slots", usable * pool.block_size);
  CheckIds(ids.target_slots, "out_slots", targets * pool.block_size);
  const auto slots = static_cast<int64_t>(ids.slots.size());
  const auto tokens = slots + static_cast<int64_t>(ids.pages.size()) * pool.block_size;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (letters[i] == 'P' && has_pages) continue;
    const bool is_tokens = letters[i] == 'P' || letters[i] == 'T';
    view.layout += is_tokens ? 'T' : letters[i];
    view.shape.push_back(is_tokens ? tokens : shape[i]);
  }
  view.paged = std::move(pool);
}

// Of a call that is not prepared `values` also names the embedding.
Request MoveOf(nb::handle k, const Arguments& values, const MoveConstants& constants,
               bool is_prepared) {
  Request call;
  call.moves = constants;
  call.options = OptionsOf(values["timeout"]);
  call.request.operation = client::Operation::kReposition;
  if (!is_prepared) call.request.rope = values.Rope(values.has("table"));
  AddTable(values["table"], call);
  const bool is_by_head = AddDistance(values, call.request);
  const bool has_pages = values.has("pages");
  const bool is_paged = has_pages || values.has("slots");
  if (has_pages && values.has("slots")) RaiseInvalid("pages", "it and slots", "one of them");
  if (!is_paged && (constants.block_size.has_value() || values.has("out_slots"))) {
    RaiseInvalid(constants.block_size.has_value() ? "block_size" : "out_slots", "it alone",
                 "it with pages or slots");
  }
  const PagedTokens ids = {.pages = IdsOf(values, "pages"),
                           .slots = IdsOf(values, "slots"),
                           .target_slots = IdsOf(values, "out_slots")};
  const Axes& axes = has_pages ? kPages : is_paged ? kSlots : is_by_head ? kByHead : kTokens;
  const nb::handle out = values["out"];
  const std::vector<nb::object> inputs = ArraysOf(k);
  const std::vector<nb::object> outputs = out.is_none() ? inputs : ArraysOf(out);
  if (inputs.empty() || outputs.size() != inputs.size()) {
    RaiseInvalid("k, out", std::to_string(inputs.size()) + " and " + std::to_string(outputs.size()),
                 "an array, or as many in both");
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string index = inputs[i].is(k) ? "" : std::string("[") + std::to_string(i) + "]";
    const Array array(inputs[i], "k" + index, constants.dtype, &call.gpu);
    std::optional<Array> other;
    if (!out.is_none()) other.emplace(outputs[i], "out" + index, constants.dtype, &call.gpu);
    const Array& result = out.is_none() ? array : *other;
    CheckIsNoFloat64(array, "fp32, fp16, bf16, fp8_e4m3 or fp8_e5m2");
    CheckDType(array, constants.dtype.value_or(array.dtype()));
    CheckDType(result, array.dtype());
    const char* const letters = axes[static_cast<size_t>(array.tensor().rank)];
    if (letters == nullptr) {
      RaiseInvalid(array.name() + ".shape", TextOf(array.shape()), "axes as move_ explains them");
    }
    TensorView view;
    view.role = client::Role::kK;
    view.dtype = array.dtype();
    view.rotary_offset = constants.rotary_offset;
    view.data = array.tensor().data;
    view.memory = array.memory();
    view.output = result.writable();
    if (is_paged) {
      AddPages(array, result, letters, ids, i == 0, constants.block_size, view);
    } else {
      view.layout = letters;
      view.shape = array.shape();
      view.strides = array.strides();
      view.output_strides = result.strides();
      if (result.shape() != view.shape) {
        RaiseInvalid(result.name() + ".shape", TextOf(result.shape()), TextOf(view.shape));
      }
    }
    call.names.push_back(array.name());
    call.arrays.push_back(array.kept());
    call.arrays.push_back(result.kept());
    call.request.tensors.push_back(std::move(view));
  }
  call.result = nb::borrow(out.is_none() ? k : out);
  call.filled = outputs;
  call.in_place = true;
  return call;
}

}  // namespace

Request Request::OfMove(nb::handle k, nb::handle arguments) {
  const Arguments given(arguments, "block_size", "precision");
  if (!given.has("out")) WarnOfCopy(k, "k");
  if (given.has("scale")) Imported("ropeserve.client", "_check_scale")(k, given["scale"]);
  return MoveOf(k, given,
                {.rotary_offset = given.IntegerOf("rotary_offset"),
                 .block_size = given.IntegerOf("block_size"),
                 .dtype = given.DTypeOf("dtype")},
                false);
}

Request Prepared::Move(nb::handle k, nb::handle values) const {
  if (!move_.has_value()) {
    RaiseInvalid("operation", "a rotation", "operation=\"move\" of prepare");
  }
  const Arguments given(values, "table", "timeout");
  if (!given.has("out")) WarnOfCopy(k, "k");
  Request call = MoveOf(k, given, *move_, true);
  RemoveConstants(call.request);
  return call;
}

void Prepared::RemoveConstants(client::RotateRequest& request) const {
  bool is_alike = request.tensors.size() == moved_.size();
  for (size_t i = 0; is_alike && i < request.tensors.size(); ++i) {
    TensorView& view = request.tensors[i];
    const TensorView& want = moved_[i];
    is_alike = view.layout == want.layout && view.dtype == want.dtype && view.shape == want.shape &&
               view.paged.has_value() == want.paged.has_value() &&
               (!want.paged.has_value() || AreAlike(*view.paged, *want.paged));
    TensorView values = {.data = view.data,
                         .memory = view.memory,
                         .output = view.output,
                         .strides = std::move(view.strides),
                         .output_strides = std::move(view.output_strides)};
    if (view.paged.has_value()) {
      values.paged = PagedTokens{.pages = std::move(view.paged->pages),
                                 .slots = std::move(view.paged->slots),
                                 .target_slots = std::move(view.paged->target_slots)};
    }
    view = std::move(values);
  }
  if (!is_alike) {
    RaiseInvalid("k", "arrays of other kinds", "dtype, shape and number of tokens as prepared");
  }
  request.rope = {};
  request.operation = {};
  request.prepared = rotation_;
}

}  // namespace rope::python
