// ropeserve._core: the library as Python sees it, with calls that do not hold the GIL. The package
// around it has the names that people use, and their documentation.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "client/cli/arguments.h"
#include "client/cli/lint/diff.h"
#include "client/cli/lint/lint.h"
#include "client/cli/lint/lint_output.h"
#include "client/cli/local_describe.h"
#include "client/error.h"
#include "client/python/core/arguments.h"
#include "client/python/core/interpreter.h"
#include "client/python/core/request.h"
#include "rope/client.h"
#include "rope/embedded.h"
#include "rope/rope.h"

namespace rope::python {
namespace {

namespace nb = nanobind;
using client::RopeSpec;
using client::RotateReply;
using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

// Requests of calls that ended while the server may still work on their arrays: their memory is not
// given to others. With the GIL.
using Unfinished = std::vector<nb::object>;

// The error of a failed call. A reposition by a difference wants lengths where numbers follow them.
Status Failed(const Status& status, const nb::object& request,
              const std::shared_ptr<Unfinished>& unfinished) {
  if (unfinished != nullptr && status.detail().may_have_executed) unfinished->push_back(request);
  const bool is_about_by =
      status.detail().field == "reposition.by" && status.detail().reason == Reason::kInvalidField;
  if (!is_about_by || nb::cast<const Request&>(request).moves.has_value()) return status;
  return client::InvalidField("seq_lens", "none, for a config that follows the length",
                              "the lengths, with by");
}

// What a reply warns of; of a move also how many elements its 8-bit type could not hold.
std::vector<std::string> WarningsOf(const RotateReply& reply, const Request& request) {
  std::vector<std::string> warnings = reply.warnings;
  if (!request.request.reposition.has_value()) return warnings;
  for (size_t i = 0; i < reply.tensors.size() && i < request.names.size(); ++i) {
    const int64_t saturated = reply.tensors[i].saturated;
    if (saturated == 0) continue;
    warnings.push_back(request.names[i] + ": " + std::to_string(saturated) +
                       " elements past the largest number of their 8-bit type became that number");
  }
  return warnings;
}

// Calls a callable, and may itself be called and destroyed by any thread. `request` is kept until
// the call has ended. REQUIRES: all clients are closed before the interpreter ends, as client.py
// does.
client::RotateCallback CallbackOf(nb::object callable, nb::object request,
                                  std::shared_ptr<Unfinished> unfinished) {
  struct Held {
    nb::object callable;
    nb::object request;
    std::shared_ptr<Unfinished> unfinished;
  };
  const auto let_go = [](const Held* held) {
    const nb::gil_scoped_acquire gil;
    if (gil.is_valid()) delete held;  // else the interpreter has ended
  };
  const std::shared_ptr<const Held> held(
      new Held{std::move(callable), std::move(request), std::move(unfinished)}, let_go);
  return [held](const Result<RotateReply>& reply) {
    const nb::gil_scoped_acquire gil;
    if (!gil.is_valid()) return;
    nb::object error = nb::none();
    nb::object warnings = nb::none();
    if (reply.ok()) {
      warnings = nb::cast(WarningsOf(*reply, nb::cast<const Request&>(held->request)));
    } else {
      error = ErrorOf(Failed(reply.status(), held->request, held->unfinished));
    }
    try {
      held->callable(error, warnings);
    } catch (nb::python_error& raised) {
      raised.discard_as_unraisable("ropeserve: callback of an asynchronous call");
    }
  };
}

// Memory of `owner`, which is moved to Python.
template <typename Owner>
Bytes GiveBytes(void* data, size_t bytes, Owner owner) {
  auto* const kept = new Owner(std::move(owner));  // owned by the capsule
  const nb::capsule capsule(kept,
                            [](void* pointer) noexcept { delete static_cast<Owner*>(pointer); });
  return Bytes(data, {bytes}, capsule);
}

constexpr const char* kCompats[] = {"default", "hf", "vllm", "llamacpp", "deepseek"};
constexpr const char* kPrecisions[] = {"exact", "hf"};
constexpr const char* kRoles[] = {"q", "k"};
constexpr const char* kTableLayouts[] = {"cos_sin", "cos_sin_cache", "duplicated", "complex"};
constexpr std::string_view kTransports[] = {"inline", "memfd", "ring"};

// Arguments that may be None.
using Given = std::optional<nb::object>;
using Text = std::optional<std::string>;

class PyClient {
 public:
  explicit PyClient(client::Client client)
      : client_(std::move(client)),
        unfinished_(client_->arena().capacity_bytes() > 0 ? std::make_shared<Unfinished>()
                                                          : nullptr) {}
  // Waits for callbacks, which need the GIL.
  ~PyClient() { Close(); }
  PyClient(const PyClient&) = delete;
  PyClient& operator=(const PyClient&) = delete;

  void Close() {
    auto closed = std::exchange(client_, std::nullopt);
    WithoutGil([&closed] { closed.reset(); });
  }

  // Runs `call` with a copy of the client, which goes before the GIL is back.
  template <typename Call>
  auto Run(const Call& call) const {
    if (!client_.has_value()) {
      Raise(client::MakeError(Reason::kWrongState, "client", "a closed one", "one that is open"));
    }
    client::Client client = *client_;
    const nb::gil_scoped_release release;
    const client::Client used = std::move(client);
    return call(used);
  }

  // Returns the arrays that the request fills; on a GPU they are filled when the stream has run.
  nb::object Rotate(const nb::object& request) const {
    const auto& call = nb::cast<const Request&>(request);
    if (call.in_place) MarkChanged(call.filled);
    const Result<RotateReply> reply = Run([&](const client::Client& client) {
      if (call.gpu.place.cuda.has_value()) return Enqueue(client, call.request, call.gpu);
      return client.Rotate(call.request, call.options);
    });
    if (!reply.ok()) Raise(Failed(reply.status(), request, unfinished_));
    const std::vector<std::string> warnings = WarningsOf(*reply, call);
    if (!warnings.empty()) Warn(nb::cast(warnings));
    return call.result;
  }

  client::Call RotateAsync(const nb::object& request, nb::object callable) const {
    const auto& call = nb::cast<const Request&>(request);
    if (call.in_place) MarkChanged(call.filled);
    const auto callback = CallbackOf(std::move(callable), request, unfinished_);
    return Run([&](const client::Client& client) {
      return client.RotateAsync(call.request, callback, call.options);
    });
  }

  Prepared Prepare(const Request& request, const std::string& open_axis) const {
    client::RotateRequest packed = request.request;  // calls bring strides of their own
    for (client::TensorView& view : packed.tensors) {
      view.strides.clear();
      view.output_strides.clear();
    }
    client::PreparedRotation rotation = Take(Run([&](const client::Client& client) {
      return client.Prepare(packed, open_axis, request.options);
    }));
    if (!rotation.warnings().empty()) Warn(nb::cast(rotation.warnings()));
    if (request.gpu.place.cuda.has_value()) {  // a stream may be captured from now on
      Take(Run([&](const client::Client& client) {
        return Enqueue(client, request.request, request.gpu, /*prepares_only=*/true);
      }));
    }
    return {std::move(rotation), request};
  }

  // Dtypes and layouts by name.
  std::string Describe(const RopeSpec& rope, std::optional<int64_t> seq_len,
                       const std::vector<int64_t>& positions, std::optional<int64_t> head_dim,
                       const Given& dtype) const {
    client::DescribeRequest request = {
        .rope = rope, .seq_len = seq_len, .positions = positions, .head_dim = head_dim};
    if (dtype.has_value()) request.dtype = ChoiceOf<client::DType>(*dtype, "dtype", kDTypes);
    return Take(Run([&](const client::Client& client) { return client.DescribeJson(request); }));
  }

  // config_id, attention factor, length, warnings, and the shape and bytes of each array.
  nb::tuple Tables(const RopeSpec& rope, int64_t begin, int64_t end, nb::handle layout,
                   nb::handle dtype, std::optional<int64_t> seq_len,
                   std::optional<int64_t> head_dim, bool skip_attention_factor) const {
    const client::TablesRequest request = {
        .rope = rope,
        .positions = {.begin = begin, .end = end},
        .dtype = ChoiceOf<client::DType>(dtype, "dtype", kDTypes),
        .layout = ChoiceOf<client::TableLayout>(layout, "layout", kTableLayouts),
        .seq_len = seq_len,
        .head_dim = head_dim,
        .skip_attention_factor = skip_attention_factor};
    client::TablesReply reply =
        Take(Run([&](const client::Client& client) { return client.GetTables(request); }));
    nb::list arrays;
    for (client::TableArray* array : {&reply.table, &reply.cos, &reply.sin}) {
      if (array->shape.empty()) continue;
      void* const data = array->data.data();  // stays where it is when the vector is moved
      const size_t bytes = array->data.size();
      arrays.append(nb::make_tuple(array->shape, GiveBytes(data, bytes, std::move(array->data))));
    }
    return nb::make_tuple(reply.config_id, reply.attention_factor, reply.seq_len, reply.warnings,
                          arrays);
  }

  std::string CallJson(const std::string& method, const std::string& request) const {
    return Take(
        Run([&](const client::Client& client) { return client.CallJson(method, request); }));
  }

  Bytes Allocate(int64_t bytes) const {
    client::Slot slot =
        Take(Run([&](const client::Client& client) { return client.arena().Allocate(bytes); }));
    void* const data = slot.data();
    return GiveBytes(data, static_cast<size_t>(bytes), std::move(slot));
  }

  void Fence(nb::handle timeout) const {
    const client::CallOptions options = OptionsOf(timeout);
    Unfinished before;
    if (unfinished_ != nullptr) before.swap(*unfinished_);
    const Status status = Run([&](const client::Client& client) { return client.Fence(options); });
    if (status.ok()) return;
    for (nb::object& request : before) unfinished_->push_back(std::move(request));
    Raise(status);
  }

  std::string Transport() const {
    return Run([](const client::Client& client) { return Name(client.transport().transport); });
  }

 private:
  static Result<RotateReply> Enqueue(const client::Client& client,
                                     const client::RotateRequest& call, const Gpu& gpu,
                                     bool prepares_only = false) {
    DeviceQueue queue = gpu.queue;
    queue.device = *gpu.place.cuda;
    queue.prepares_only = prepares_only;
    return client.Enqueue(call, queue);
  }

  std::optional<client::Client> client_;
  const std::shared_ptr<Unfinished> unfinished_;  // null: no arena
};

// `secrets`: the fields of TlsOptions, token and token_file, by name.
PyClient* Connect(const std::string& target, double timeout, int64_t arena_bytes,
                  const std::vector<std::string>& transports, bool tls,
                  const std::map<std::string, std::string>& secrets) {
  client::ConnectOptions options;
  options.tls.enabled = tls;
  for (const auto& [name, field] :
       {std::pair("ca_file", &options.tls.ca_file), std::pair("cert_file", &options.tls.cert_file),
        std::pair("key_file", &options.tls.key_file),
        std::pair("server_name", &options.tls.server_name), std::pair("token", &options.token),
        std::pair("token_file", &options.token_file)}) {
    if (const auto found = secrets.find(name); found != secrets.end()) *field = found->second;
  }
  options.timeout = OptionsOf(nb::float_(timeout)).timeout;
  options.arena_bytes = arena_bytes;
  if (!transports.empty()) options.transports.clear();
  for (const std::string& name : transports) {
    const auto* const found = std::ranges::find(kTransports, name);
    if (found == std::end(kTransports)) {
      RaiseInvalid("transports", name, "some of ring, memfd, inline");
    }
    options.transports.push_back(static_cast<client::Transport>(found - kTransports));
  }
  return new PyClient(  // owned by Python
      Take(WithoutGil([&] { return client::Client::Connect(target, options); })));
}

PyClient* Local(int threads, int64_t memory_bytes, int64_t device_table_bytes) {
  const embedded::Options options = {
      .threads = threads, .memory_bytes = memory_bytes, .device_table_bytes = device_table_bytes};
  return new PyClient(  // owned by Python
      Take(WithoutGil([&] { return embedded::Connect(options); })));
}

// Names the embedding. Its parameters are the arguments of Rope, in their order.
RopeSpec SpecOf(const Text& model, const Text& config, const Text& config_id,
                std::optional<int32_t> layer, const Text& layer_type,
                std::optional<int32_t> first_layer, const Text& sub_config, const Given& pairing,
                const Given& compat, const Given& precision) {
  RopeSpec spec = {.model = model.value_or(""),
                   .config_id = config_id.value_or(""),
                   .config_json = config.value_or(""),
                   .layer = layer,
                   .layer_type = layer_type.value_or(""),
                   .first_layer = first_layer,
                   .sub_config = sub_config.value_or("")};
  if (pairing.has_value()) spec.pairing = ChoiceOf<Pairing>(*pairing, "pairing", kPairings);
  if (compat.has_value()) spec.compat = ChoiceOf<Compat>(*compat, "compat", kCompats);
  if (precision.has_value()) {
    spec.precision = ChoiceOf<Precision>(*precision, "precision", kPrecisions);
  }
  return spec;
}

// Options of a tensor. Its parameters are the fields of Tensor, in their order.
client::TensorView ViewOf(const std::string& name, const Given& role, const Text& layout,
                          const Text& output_layout,
                          const std::vector<std::tuple<int64_t, int64_t, nb::object>>& heads,
                          std::optional<double> scale, std::optional<double> fp8_scale,
                          std::optional<int64_t> rotary_offset, std::optional<double> beta) {
  client::TensorView view = {
      .role = ChoiceOf<client::Role>(role.value_or(nb::cast(name)), name + ".role", kRoles),
      .layout = layout.value_or(""),
      .output_layout = output_layout.value_or(""),
      .scale = scale,
      .llama4_scaling_beta = beta,
      .fp8_scale = fp8_scale,
      .rotary_offset = rotary_offset};
  for (const auto& [begin, end, its_role] : heads) {
    client::HeadRange& range =
        view.head_ranges.emplace_back(client::HeadRange{.begin = begin, .end = end});
    if (!its_role.is_none()) range.role = ChoiceOf<client::Role>(its_role, name + ".heads", kRoles);
  }
  return view;
}

// The JSON of `ropectl lint --json`.
std::string Lint(const std::string& file, const std::string& text, const Text& engine,
                 const std::string& sub_config) {
  kernels::EngineVersion filter;
  if (engine.has_value()) filter = Take(client::ReadFilter(*engine));
  return WithoutGil(
      [&] { return client::LintJson({client::LintText(file, text, filter, sub_config)}); });
}

// The JSON of `ropectl diff --json`.
std::string Diff(const std::string& a, const std::string& b, double error,
                 const std::string& sub_config, const std::string& engine_a,
                 const std::string& engine_b) {
  const auto first = Take(WithoutGil([&] { return client::SideOf(a, sub_config, engine_a); }));
  const auto second = Take(WithoutGil([&] { return client::SideOf(b, sub_config, engine_b); }));
  return client::JsonText(Take(WithoutGil([&] { return client::Diff(first, second, error); })));
}

// Empty: all layers are equal, or the text is no config that can be read.
std::vector<std::string> LayerTypes(const std::string& text, const std::string& sub_config) {
  const auto config = kernels::ModelConfig::Parse(text, sub_config);
  return config.ok() ? config->layer_types() : std::vector<std::string>();
}

}  // namespace
}  // namespace rope::python

NB_MODULE(_core, module) {
  namespace nb = nanobind;
  using namespace rope::python;
  using namespace rope;
  // torch keeps compiled functions, and with them clients, until after the interpreter's end.
  nb::set_leak_warnings(false);
  module.attr("version") = rope_version();
  nb::class_<client::RopeSpec>(module, "RopeSpec");
  module.def("rope_spec", SpecOf);
  nb::class_<client::TensorView>(module, "TensorView");
  module.def("tensor_view", ViewOf);
  nb::class_<Request>(module, "Request").def_ro("result", &Request::result);
  module.def("rotation", &Request::OfRotation, nb::arg("operation"), nb::arg("q").none(),
             nb::arg("k").none(), nb::arg("in_place"), nb::arg("arguments"),
             nb::arg("by") = nb::none(), nb::arg("to") = nb::none(), nb::arg("from_") = nb::none(),
             nb::arg("from_rope") = nb::none(), nb::arg("to_prepare") = false);
  module.def("move", &Request::OfMove, nb::arg("k").none(), nb::arg("arguments"));
  nb::class_<Prepared>(module, "Prepared")
      .def_prop_ro("id", &Prepared::id)
      .def("values", &Prepared::Values, nb::arg("arrays"), nb::arg("q").none(), nb::arg("k").none(),
           nb::arg("in_place"), nb::arg("from_").none(), nb::arg("timeout").none(),
           nb::arg("positions"))
      .def("move", &Prepared::Move, nb::arg("k").none(), nb::arg("values"));
  nb::class_<client::Call>(module, "Call").def("cancel", &client::Call::Cancel);
  nb::class_<PyClient>(module, "Client", nb::is_weak_referenceable())
      .def("close", &PyClient::Close)
      .def("rotate", &PyClient::Rotate)
      .def("rotate_async", &PyClient::RotateAsync)
      .def("prepare", &PyClient::Prepare)
      .def("describe", &PyClient::Describe)
      .def("tables", &PyClient::Tables)
      .def("call", &PyClient::CallJson)
      .def("allocate", &PyClient::Allocate)
      .def("fence", &PyClient::Fence, nb::arg("timeout").none())
      .def_prop_ro("transport", &PyClient::Transport);
  module.def("connect", Connect);
  module.def("local", Local);
  module.def("preset", client::PresetText);
  module.def("lint", Lint);
  module.def("diff", Diff);
  module.def("engines", client::EngineNames);
  module.def("layer_types", LayerTypes);
}
