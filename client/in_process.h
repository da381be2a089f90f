// How Client::Connect reaches "inproc:". The client library knows no server: rope::embedded::Enable
// tells it the function.
//
// Threading:  Thread-safe.
#ifndef ROPE_CLIENT_IN_PROCESS_H_
#define ROPE_CLIENT_IN_PROCESS_H_

#include <memory>

#include "rope/connection.h"
#include "rope/options.h"
#include "rope/status.h"

namespace rope::client {

using InProcessConnect = Result<std::shared_ptr<Connection>> (*)(const ConnectOptions& options);

void SetInProcessConnect(InProcessConnect connect);

}  // namespace rope::client

#endif  // ROPE_CLIENT_IN_PROCESS_H_
