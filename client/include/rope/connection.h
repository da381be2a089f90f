// Connection: what makes the calls of a Client. Client::Connect creates one to a server. A program
// may implement its own: a test's mock (mock.h), or an engine in the same process.
//
//   Client client(std::make_shared<MyConnection>());
//
// Each method is documented with the Client method of its name (client.h), in async.h for
// RotateAsync.
//
// Threading:  Client requires every method to be thread-safe.
// Ownership:  Copies of a Client share the connection; the last one destroys it.
#ifndef ROPE_CONNECTION_H_
#define ROPE_CONNECTION_H_

#include <string>

#include "rope/arena.h"
#include "rope/async.h"
#include "rope/describe.h"
#include "rope/device.h"
#include "rope/options.h"
#include "rope/prepared.h"
#include "rope/rotate.h"
#include "rope/status.h"
#include "rope/tables.h"

namespace rope::client {

class Connection {
 public:
  virtual ~Connection() = default;

  virtual Arena arena() = 0;
  virtual ChosenTransport transport() = 0;
  virtual Result<ImportedMemory> ImportMemory(const MemoryFile& file,
                                              const CallOptions& options) = 0;

  virtual Result<RotateReply> Rotate(const RotateRequest& request, const CallOptions& options) = 0;
  virtual Result<PreparedRotation> Prepare(const RotateRequest& request,
                                           const std::string& open_axis,
                                           const CallOptions& options) = 0;
  virtual Result<PreparedRotation> PrepareJson(const std::string& request,
                                               const CallOptions& options) = 0;
  virtual Call RotateAsync(const RotateRequest& request, RotateCallback callback,
                           const CallOptions& options) = 0;
  // UNIMPLEMENTED, unless overridden: only an engine in this process shares its GPUs.
  virtual Result<RotateReply> Enqueue(const RotateRequest& request, const DeviceQueue& queue);
  virtual Status Fence(const CallOptions& options) = 0;

  virtual Result<std::string> CallJson(const std::string& method, const std::string& request,
                                       const CallOptions& options) = 0;
  virtual Result<DescribeReply> Describe(const DescribeRequest& request,
                                         const CallOptions& options) = 0;
  virtual Result<TablesReply> GetTables(const TablesRequest& request,
                                        const CallOptions& options) = 0;
  virtual Result<ServingStatus> Health(const std::string& service, const CallOptions& options) = 0;
};

}  // namespace rope::client

#endif  // ROPE_CONNECTION_H_
