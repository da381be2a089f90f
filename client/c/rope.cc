// Connections, rotations and the arena.
#include "rope/rope.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "client/c/error.h"
#include "client/c/objects.h"
#include "client/c/read_request.h"
#include "rope/client.h"
#include "rope/embedded.h"

namespace {

using rope::Result;
using rope::Status;
using rope::c::CheckGiven;
using rope::c::Give;
using rope::c::Guarded;
using rope::client::CallOptions;
using rope::client::Client;
using rope::client::ConnectOptions;
using rope::client::PreparedRotation;
using rope::client::RotateReply;
using rope::client::RotateRequest;

// Before the first connection to "inproc:" and before other options for it.
void EnableInProcess() {
  static std::once_flag enabled;
  std::call_once(enabled, [] { rope::embedded::Enable(); });
}

// A tensor without elements needs no memory.
bool IsEmpty(const rope::client::TensorView& tensor) {
  return std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
}

Status CheckOutputs(const RotateRequest& request) {
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    if (request.tensors[i].output == nullptr && !IsEmpty(request.tensors[i])) {
      return rope::c::Invalid("tensors[" + std::to_string(i) + "].output", "null",
                              "memory, or a reply that has the result");
    }
  }
  return {};
}

Status Rotate(const rope_client* client, const RotateRequest& request, const CallOptions& options,
              rope_reply** reply, bool* began) {
  if (reply == nullptr) {
    if (Status status = CheckOutputs(request); !status.ok()) return status;
  }
  *began = true;
  Result<RotateReply> answer = client->client.Rotate(request, options);
  return reply == nullptr ? answer.status() : Give(std::move(answer), reply);
}

}  // namespace

rope_error* rope_connect(const char* target, const rope_connect_options* options,
                         rope_client** client) {
  return Guarded([&]() -> Status {
    ConnectOptions connect;
    Status status = CheckGiven(target, "target");
    if (status.ok()) status = CheckGiven(client, "client");
    if (status.ok()) status = rope::c::ReadOptions(options, &connect);
    if (!status.ok()) return status;
    EnableInProcess();
    return Give(Client::Connect(target, connect), client);
  });
}

rope_error* rope_connect_in_process(const rope_engine_options* engine,
                                    const rope_connect_options* options, rope_client** client) {
  return Guarded([&]() -> Status {
    rope::embedded::Options engine_options;
    ConnectOptions connect;
    Status status = CheckGiven(client, "client");
    if (status.ok()) status = rope::c::ReadOptions(engine, &engine_options);
    if (status.ok()) status = rope::c::ReadOptions(options, &connect);
    if (!status.ok()) return status;
    return Give(rope::embedded::Connect(engine_options, connect), client);
  });
}

rope_error* rope_set_in_process_engine(const rope_engine_options* engine) {
  return Guarded([&]() -> Status {
    rope::embedded::Options options;
    if (Status status = rope::c::ReadOptions(engine, &options); !status.ok()) return status;
    EnableInProcess();
    rope::embedded::Enable(options);
    return {};
  });
}

void rope_close(rope_client* client) {
  delete client;
}

const char* rope_transport_name(const rope_client* client) {
  if (client == nullptr) return "";
  const char* name = "";
  rope_error_free(Guarded([&]() -> Status {
    name = Name(client->client.transport().transport);
    return {};
  }));
  return name;
}

rope_error* rope_rotate(const rope_client* client, const rope_request* request,
                        const rope_call_options* options, rope_reply** reply) {
  bool began = false;
  const auto call_it = [&]() -> Status {
    RotateRequest call;
    CallOptions call_options;
    Status status = CheckGiven(client, "client");
    if (status.ok()) status = rope::c::ReadCall(request, options, &call, &call_options);
    if (!status.ok()) return status;
    return Rotate(client, call, call_options, reply, &began);
  };
  return Guarded(call_it, &began);
}

rope_error* rope_prepare(const rope_client* client, const rope_request* request,
                         const char* open_axis, const rope_call_options* options,
                         rope_prepared** prepared) {
  return Guarded([&]() -> Status {
    RotateRequest call;
    CallOptions call_options;
    Status status = CheckGiven(client, "client");
    if (status.ok()) status = CheckGiven(prepared, "prepared");
    if (status.ok()) status = rope::c::ReadCall(request, options, &call, &call_options);
    if (!status.ok()) return status;
    const std::string axis = open_axis == nullptr ? "" : open_axis;
    return Give(client->client.Prepare(call, axis, call_options), prepared);
  });
}

rope_error* rope_rotate_prepared(const rope_client* client, const rope_prepared* prepared,
                                 const rope_values* values, const rope_call_options* options,
                                 rope_reply** reply) {
  bool began = false;
  const auto call_it = [&]() -> Status {
    RotateRequest call;
    CallOptions call_options;
    Status status = CheckGiven(client, "client");
    if (status.ok()) status = CheckGiven(prepared, "prepared");
    if (status.ok()) status = rope::c::ReadValues(values, prepared->rotation, &call);
    if (status.ok()) status = rope::c::ReadOptions(options, &call_options);
    if (!status.ok()) return status;
    return Rotate(client, call, call_options, reply, &began);
  };
  return Guarded(call_it, &began);
}

const char* rope_prepared_id(const rope_prepared* prepared) {
  return prepared == nullptr ? "" : prepared->rotation.id().c_str();
}

size_t rope_prepared_warning_count(const rope_prepared* prepared) {
  return prepared == nullptr ? 0 : prepared->rotation.warnings().size();
}

const char* rope_prepared_warning(const rope_prepared* prepared, size_t index) {
  return prepared == nullptr ? nullptr : rope::c::TextAt(prepared->rotation.warnings(), index);
}

void rope_prepared_free(rope_prepared* prepared) {
  delete prepared;
}

rope_error* rope_arena_allocate(const rope_client* client, int64_t bytes, rope_slot** slot) {
  return Guarded([&]() -> Status {
    Status status = CheckGiven(client, "client");
    if (status.ok()) status = CheckGiven(slot, "slot");
    if (!status.ok()) return status;
    return Give(client->client.arena().Allocate(bytes), slot);
  });
}

int64_t rope_arena_capacity_bytes(const rope_client* client) {
  return client == nullptr ? 0 : client->client.arena().capacity_bytes();
}

int64_t rope_arena_used_bytes(const rope_client* client) {
  return client == nullptr ? 0 : client->client.arena().used_bytes();
}

void* rope_slot_data(const rope_slot* slot) {
  return slot == nullptr ? nullptr : slot->slot.data();
}

int64_t rope_slot_bytes(const rope_slot* slot) {
  return slot == nullptr ? 0 : slot->slot.bytes();
}

void rope_slot_free(rope_slot* slot) {
  delete slot;
}

rope_error* rope_fence(const rope_client* client, const rope_call_options* options) {
  return Guarded([&]() -> Status {
    CallOptions call_options;
    Status status = CheckGiven(client, "client");
    if (status.ok()) status = rope::c::ReadOptions(options, &call_options);
    if (!status.ok()) return status;
    return client->client.Fence(call_options);
  });
}
