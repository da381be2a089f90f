// Adds the methods of the control plane to the service.
//
// Threading:  Call AddControlMethods before the service is armed.
// Ownership:  Everything in ControlParts must outlive the service and its calls.
#ifndef ROPE_SERVER_CONTROL_METHODS_H_
#define ROPE_SERVER_CONTROL_METHODS_H_

#include <cstdint>
#include <functional>

#include "rope/v1/rope_service.pb.h"
#include "server/engine/side_thread.h"
#include "server/grpc/rope_service.h"
#include "server/memory/admission.h"
#include "server/memory/connections.h"
#include "server/memory/regions.h"
#include "server/models/model_registry.h"
#include "server/request/prepared_rotation.h"

namespace rope::server {

struct ControlParts {
  ModelRegistry* registry = nullptr;
  PreparedRotations* prepared = nullptr;
  RegionTable* regions = nullptr;
  Connections* connections = nullptr;
  SideThread* side_thread = nullptr;
  Admission* admission = nullptr;
  int64_t reply_bytes_max = 0;
  std::function<v1::GetServerInfoResponse()> server_info;
};

void AddControlMethods(const ControlParts& parts, RopeService& service);

}  // namespace rope::server

#endif  // ROPE_SERVER_CONTROL_METHODS_H_
