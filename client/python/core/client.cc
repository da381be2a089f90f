// Client: calls of the library, without the GIL.
#include "rope/client.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/error.h"
#include "client/python/core/arguments.h"
#include "client/python/core/bindings.h"
#include "client/python/core/errors.h"
#include "client/python/core/request.h"
#include "rope/embedded.h"

namespace rope::python {
namespace {

namespace nb = nanobind;
using client::CallOptions;
using client::RopeSpec;
using client::RotateReply;
using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

// Requests of calls that ended while the server may still work on their arrays: their memory is not
// given to others. With the GIL.
using Unfinished = std::vector<nb::object>;

void KeepUnfinished(const Status& status, const nb::object& request,
                    const std::shared_ptr<Unfinished>& unfinished) {
  if (unfinished != nullptr && status.detail().may_have_executed) unfinished->push_back(request);
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

// A callable that any thread may call and destroy. REQUIRES: all clients are closed before the
// interpreter ends, as client.py does.
class Callback {
 public:
  // `request` is kept until the call has ended.
  Callback(nb::object callable, nb::object request, std::shared_ptr<Unfinished> unfinished)
      : held_(std::make_shared<Held>(
            Held{std::move(callable), std::move(request), std::move(unfinished)})) {}

  void operator()(const Result<RotateReply>& reply) const {
    const nb::gil_scoped_acquire gil;
    if (!gil.is_valid()) return;
    if (reply.ok()) {
      Call(nb::none(), nb::cast(WarningsOf(*reply, nb::cast<const Request&>(held_->request))));
      return;
    }
    KeepUnfinished(reply.status(), held_->request, held_->unfinished);
    Call(ErrorOf(reply.status()), nb::none());
  }

 private:
  struct Held {
    nb::object callable;
    nb::object request;
    std::shared_ptr<Unfinished> unfinished;
    ~Held() {
      const nb::gil_scoped_acquire gil;
      if (!gil.is_valid()) {  // the interpreter has ended
        callable.release();
        request.release();
      }
      callable.reset();
      request.reset();
    }
  };

  void Call(const nb::object& error, const nb::object& warnings) const {
    try {
      held_->callable(error, warnings);
    } catch (nb::python_error& raised) {
      raised.discard_as_unraisable("ropeserve: callback of an asynchronous call");
    }
  }

  std::shared_ptr<Held> held_;
};

// Memory of `owner`, which is moved to Python.
template <typename Owner>
Bytes GiveBytes(void* data, size_t bytes, Owner owner) {
  auto* const kept = new Owner(std::move(owner));  // owned by the capsule
  const nb::capsule capsule(kept,
                            [](void* pointer) noexcept { delete static_cast<Owner*>(pointer); });
  return Bytes(data, {bytes}, capsule);
}

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
    std::optional<client::Client> closed = std::move(client_);
    client_.reset();
    WithoutGil([&closed] { closed.reset(); });
  }

  // Runs `call` with a copy of the client, which goes before the GIL is back.
  template <typename Call>
  auto Run(const Call& call) const {
    if (!client_.has_value()) RaiseClosed();
    client::Client client = *client_;
    const nb::gil_scoped_release release;
    const client::Client used = std::move(client);
    return call(used);
  }

  // Returns the arrays that the request fills.
  nb::object Rotate(const nb::object& request) const {
    const auto& call = nb::cast<const Request&>(request);
    for (const nb::object& array : call.changed) MarkChanged(array);
    const Result<RotateReply> reply = Run(
        [&](const client::Client& client) { return client.Rotate(call.request, call.options); });
    if (!reply.ok()) {
      KeepUnfinished(reply.status(), request, unfinished_);
      Raise(reply.status());
    }
    const std::vector<std::string> warnings = WarningsOf(*reply, call);
    if (!warnings.empty()) Warn(nb::cast(warnings));
    return call.result;
  }

  client::Call RotateAsync(const nb::object& request, nb::object callable) const {
    const auto& call = nb::cast<const Request&>(request);
    for (const nb::object& array : call.changed) MarkChanged(array);
    Callback callback(std::move(callable), request, unfinished_);
    return Run([&, callback = std::move(callback)](const client::Client& client) {
      return client.RotateAsync(call.request, callback, call.options);
    });
  }

  Prepared Prepare(const Request& request, const std::string& open_axis, nb::handle timeout) const {
    const CallOptions options = OptionsOf(timeout);
    client::RotateRequest packed = request.request;  // calls bring strides of their own
    for (client::TensorView& view : packed.tensors) {
      view.strides.clear();
      view.output_strides.clear();
    }
    client::PreparedRotation rotation = Take(Run(
        [&](const client::Client& client) { return client.Prepare(packed, open_axis, options); }));
    if (!rotation.warnings().empty()) Warn(nb::cast(rotation.warnings()));
    return {std::move(rotation), request.names};
  }

  std::string Describe(const RopeSpec& rope, std::optional<int64_t> seq_len,
                       std::vector<int64_t> positions, std::optional<int64_t> head_dim,
                       std::optional<client::DType> dtype) const {
    client::DescribeRequest request;
    request.rope = rope;
    request.seq_len = seq_len;
    request.positions = std::move(positions);
    request.head_dim = head_dim;
    request.dtype = dtype;
    return Take(Run([&](const client::Client& client) { return client.DescribeJson(request); }));
  }

  nb::dict Tables(const RopeSpec& rope, int64_t begin, int64_t end, client::TableLayout layout,
                  client::DType dtype, std::optional<int64_t> seq_len,
                  std::optional<int64_t> head_dim, bool skip_attention_factor) const {
    client::TablesRequest request;
    request.rope = rope;
    request.positions.begin = begin;
    request.positions.end = end;
    request.layout = layout;
    request.dtype = dtype;
    request.seq_len = seq_len;
    request.head_dim = head_dim;
    request.skip_attention_factor = skip_attention_factor;
    client::TablesReply reply =
        Take(Run([&](const client::Client& client) { return client.GetTables(request); }));
    nb::dict tables;
    tables["config_id"] = reply.config_id;
    tables["attention_factor"] = reply.attention_factor;
    tables["seq_len"] = reply.seq_len;
    tables["warnings"] = reply.warnings;
    nb::list arrays;
    for (client::TableArray* array : {&reply.table, &reply.cos, &reply.sin}) {
      if (array->shape.empty()) continue;
      void* const data = array->data.data();  // stays where it is when the vector is moved
      const size_t bytes = array->data.size();
      arrays.append(nb::make_tuple(array->shape, GiveBytes(data, bytes, std::move(array->data))));
    }
    tables["arrays"] = arrays;
    return tables;
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
    const CallOptions options = OptionsOf(timeout);
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
  [[noreturn]] static void RaiseClosed() {
    Raise(client::MakeError(Reason::kWrongState, "client", "a closed one", "one that is open"));
  }

  std::optional<client::Client> client_;
  const std::shared_ptr<Unfinished> unfinished_;  // null: no arena
};

std::vector<client::Transport> TransportsOf(const std::vector<std::string>& names) {
  std::vector<client::Transport> transports;
  for (const std::string& name : names) {
    for (const client::Transport each :
         {client::Transport::kRing, client::Transport::kMemfd, client::Transport::kInline}) {
      if (name == Name(each)) transports.push_back(each);
    }
  }
  return transports;
}

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
  if (!transports.empty()) options.transports = TransportsOf(transports);
  client::Client client =
      Take(WithoutGil([&] { return client::Client::Connect(target, options); }));
  return new PyClient(std::move(client));  // owned by Python
}

PyClient* Local(int threads, int64_t memory_bytes) {
  embedded::Options options;
  options.threads = threads;
  options.memory_bytes = memory_bytes;
  client::Client client = Take(WithoutGil([&] { return embedded::Connect(options, {}); }));
  return new PyClient(std::move(client));  // owned by Python
}

}  // namespace

void BindClient(nb::module_& module) {
  nb::class_<client::Call>(module, "Call").def("cancel", &client::Call::Cancel);
  nb::class_<PyClient>(module, "Client", nb::is_weak_referenceable())
      .def("close", &PyClient::Close)
      .def("rotate", &PyClient::Rotate, nb::arg("request"))
      .def("rotate_async", &PyClient::RotateAsync, nb::arg("request"), nb::arg("callback"))
      .def("prepare", &PyClient::Prepare, nb::arg("request"), nb::arg("open_axis"),
           nb::arg("timeout").none())
      .def("describe", &PyClient::Describe, nb::arg("rope"), nb::arg("seq_len").none(),
           nb::arg("positions"), nb::arg("head_dim").none(), nb::arg("dtype").none())
      .def("tables", &PyClient::Tables, nb::arg("rope"), nb::arg("begin"), nb::arg("end"),
           nb::arg("layout"), nb::arg("dtype"), nb::arg("seq_len").none(),
           nb::arg("head_dim").none(), nb::arg("skip_attention_factor"))
      .def("call", &PyClient::CallJson)
      .def("allocate", &PyClient::Allocate)
      .def("fence", &PyClient::Fence, nb::arg("timeout").none())
      .def_prop_ro("transport", &PyClient::Transport);
  module.def("connect", Connect);
  module.def("local", Local);
}

}  // namespace rope::python
