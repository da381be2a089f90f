// EmbeddedConnection: the Connection (rope/connection.h) to a service in this process.
//
// Threading:  As connection.h. Asynchronous calls run on CallbackThread, one after another, with
//             their callbacks.
// Ownership:  Connections share their service.
#ifndef ROPE_SERVER_EMBEDDED_EMBEDDED_CONNECTION_H_
#define ROPE_SERVER_EMBEDDED_EMBEDDED_CONNECTION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "client/message_connection.h"
#include "server/embedded/local_rotations.h"
#include "server/embedded/local_service.h"

namespace rope::embedded {

class EmbeddedConnection final : public client::MessageConnection {
 public:
  EmbeddedConnection(std::shared_ptr<LocalService> service, client::Arena arena,
                     int64_t pooled_bytes);
  ~EmbeddedConnection() override;

  client::Arena arena() override { return arena_; }
  client::ChosenTransport transport() override { return {client::Transport::kInProcess, {}}; }
  Result<client::ImportedMemory> ImportMemory(const client::MemoryFile& file,
                                              const client::CallOptions& options) override;
  Result<client::RotateReply> Rotate(const client::RotateRequest& request,
                                     const client::CallOptions& options) override;
  client::Call RotateAsync(const client::RotateRequest& request, client::RotateCallback callback,
                           const client::CallOptions& options) override;
  Result<client::RotateReply> Enqueue(const client::RotateRequest& request,
                                      const DeviceQueue& queue) override;
  Status Fence(const client::CallOptions& options) override;
  Result<client::ServingStatus> Health(const std::string& service,
                                       const client::CallOptions& options) override;

 private:
  Result<grpc::ByteBuffer> CallMethod(const char* method, const grpc::ByteBuffer& request,
                                      bool idempotent, const client::CallOptions& options) override;

  const client::Arena arena_;
  const std::shared_ptr<LocalRotations> rotations_;
  const std::shared_ptr<CallbackThread> calls_;
};

}  // namespace rope::embedded

#endif  // ROPE_SERVER_EMBEDDED_EMBEDDED_CONNECTION_H_
