#include "rope/rope.h"

#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "client/c/arguments.h"
#include "client/c/error.h"
#include "client/codec/messages.h"
#include "client/error.h"
#include "kernels/status_macros.h"
#include "rope/client.h"
#include "rope/embedded.h"
#include "rope/v1/prepare.pb.h"

struct rope_client {
  rope::client::Client client;
};

struct rope_memory {
  rope::client::Slot slot;
};

struct rope_prepared {
  rope::client::Client client;
  rope::client::PreparedRotation rotation;
  rope::client::CallOptions options;  // of each call
  std::string text;
};

namespace {

using rope::Result;
using rope::Status;
using rope::c::CheckGiven;
using rope::c::Guarded;
using rope::c::ReadOptions;
using rope::client::CallOptions;
using rope::client::Client;
using rope::client::ConnectOptions;

// Gives a result away as an object of C.
template <typename Object, typename T>
Status Give(Result<T> result, Object** object) {
  if (!result.ok()) return result.status();
  *object = std::make_unique<Object>(Object{*std::move(result)}).release();
  return {};
}

}  // namespace

const char* rope_version(void) {
  return ROPE_VERSION_TEXT;
}

void rope_text_free(char* text) {
  delete[] text;
}

rope_error* rope_connect(const char* target, const char* options, rope_client** client) {
  return Guarded([&]() -> Status {
    ConnectOptions connect;
    ROPE_RETURN_IF_ERROR(CheckGiven({{target, "target"}, {client, "client"}}));
    ROPE_RETURN_IF_ERROR(ReadOptions(options, &connect));
    static std::once_flag enabled;  // before the first connection to "inproc:"
    std::call_once(enabled, [] { rope::embedded::Enable(); });
    return Give(Client::Connect(target, connect), client);
  });
}

rope_error* rope_connect_embedded(const char* options, rope_client** client) {
  return Guarded([&]() -> Status {
    rope::embedded::Options engine;
    ConnectOptions connect;
    ROPE_RETURN_IF_ERROR(CheckGiven({{client, "client"}}));
    ROPE_RETURN_IF_ERROR(ReadOptions(options, &engine, &connect));
    return Give(rope::embedded::Connect(engine, connect), client);
  });
}

void rope_close(rope_client* client) {
  delete client;
}

const char* rope_transport(const rope_client* client) {
  if (client == nullptr) return "";
  const char* name = "";
  rope_error_free(Guarded([&]() -> Status {
    name = Name(client->client.transport().transport);
    return {};
  }));
  return name;
}

rope_error* rope_call(const rope_client* client, const char* method, const char* request,
                      const char* options, char** reply) {
  bool began = false;
  const auto call_it = [&]() -> Status {
    CallOptions call;
    ROPE_RETURN_IF_ERROR(CheckGiven(
        {{client, "client"}, {method, "method"}, {request, "request"}, {reply, "reply"}}));
    ROPE_RETURN_IF_ERROR(ReadOptions(options, &call));
    began = true;
    ROPE_ASSIGN_OR_RETURN(const std::string text, client->client.CallJson(method, request, call));
    auto copy = std::make_unique<char[]>(text.size() + 1);
    std::memcpy(copy.get(), text.c_str(), text.size() + 1);
    *reply = copy.release();
    return {};
  };
  return Guarded(call_it, &began);
}

rope_error* rope_prepare(const rope_client* client, const char* request, const char* options,
                         rope_prepared** prepared) {
  return Guarded([&]() -> Status {
    CallOptions call;
    ROPE_RETURN_IF_ERROR(
        CheckGiven({{client, "client"}, {request, "request"}, {prepared, "prepared"}}));
    ROPE_RETURN_IF_ERROR(ReadOptions(options, &call));
    ROPE_ASSIGN_OR_RETURN(auto rotation, client->client.PrepareJson(request, call));
    rope::v1::PrepareResponse answer;
    answer.set_prepared_id(rotation.id());
    for (const std::string& warning : rotation.warnings()) answer.add_warnings(warning);
    ROPE_ASSIGN_OR_RETURN(auto text, rope::client::ToJson(answer));
    *prepared = std::make_unique<rope_prepared>(rope_prepared{client->client, std::move(rotation),
                                                              std::move(call), std::move(text)})
                    .release();
    return {};
  });
}

const char* rope_prepared_text(const rope_prepared* prepared) {
  return prepared == nullptr ? "" : prepared->text.c_str();
}

void rope_prepared_free(rope_prepared* prepared) {
  delete prepared;
}

rope_error* rope_rotate(const rope_prepared* prepared, const rope_argument* arguments,
                        size_t argument_count, void* stream) {
  bool began = false;
  const auto call_it = [&]() -> Status {
    ROPE_RETURN_IF_ERROR(CheckGiven({{prepared, "prepared"}}));
    if (argument_count > 0) ROPE_RETURN_IF_ERROR(CheckGiven({{arguments, "arguments"}}));
    rope::client::RotateRequest call;
    std::optional<rope::DeviceQueue> queue;
    ROPE_RETURN_IF_ERROR(
        rope::c::ReadArguments(prepared->rotation, arguments, argument_count, &call, &queue));
    if (stream != nullptr && !queue.has_value()) {
      return rope::client::InvalidField("stream", "a stream", "null, for tensors in host memory");
    }
    began = true;
    if (queue.has_value()) {
      queue->stream = stream;
      return prepared->client.Enqueue(call, *queue).status();
    }
    return prepared->client.Rotate(call, prepared->options).status();
  };
  return Guarded(call_it, &began);
}

rope_error* rope_allocate(const rope_client* client, int64_t bytes, rope_memory** memory) {
  return Guarded([&]() -> Status {
    ROPE_RETURN_IF_ERROR(CheckGiven({{client, "client"}, {memory, "memory"}}));
    return Give(client->client.arena().Allocate(bytes), memory);
  });
}

void* rope_memory_data(const rope_memory* memory) {
  return memory == nullptr ? nullptr : memory->slot.data();
}

void rope_memory_free(rope_memory* memory) {
  delete memory;
}

rope_error* rope_fence(const rope_client* client, const char* options) {
  return Guarded([&]() -> Status {
    CallOptions call;
    ROPE_RETURN_IF_ERROR(CheckGiven({{client, "client"}}));
    ROPE_RETURN_IF_ERROR(ReadOptions(options, &call));
    return client->client.Fence(call);
  });
}
