// Client: a connection to a RopeServe server, and the calls on it.
//
// One Connect opens one connection. A synchronous call blocks its thread and does all of its work
// on that thread (gRPC keeps a few threads of its own, which sleep). Asynchronous calls keep many
// requests in flight without a thread per request; see async.h. Transient failures are retried
// within the call's deadline.
//
// Threading:  Thread-safe, any number of calls at once. A copy is cheap and shares the connection.
//             Destroying the last copy cancels the calls in flight (CANCELLED), runs their
//             callbacks and joins the threads that these had started (async.h). In a callback the
//             destructor does not wait: the threads end after the callback.
// Forks:      In a forked child every call fails with FAILED_PRECONDITION, "connect in the child",
//             and RotateAsync runs its callback at once. The child neither touches nor closes the
//             parent's connection, if it leaves slots and replies of the parent alone. gRPC does
//             not survive a fork: a child connects to a server only if its parent has not connected
//             before, in process too; else Connect fails with FAILED_PRECONDITION. "inproc:" and
//             rope::embedded::Connect start an engine of the child's own.
// Ownership:  A synchronous call borrows its request until it returns; an asynchronous call copies
//             it. Tensors and rows: tensor.h and async.h; replies: rotate.h. The library keeps no
//             reference to the memory of a call that has ended.
// Errors:     The server's status, with the path of the faulty field in Status::detail(). From the
//             client: INVALID_ARGUMENT: a tensor without data, or with a shape or strides whose
//             size in bytes is not defined. DEADLINE_EXCEEDED: no answer within
//             CallOptions::timeout. UNAVAILABLE: no connection. RESOURCE_EXHAUSTED: a message
//             larger than ConnectOptions::max_message_bytes. INTERNAL: an unreadable answer.
// Limits:     If the server stops reading in the middle of a request, the call can outlast its
//             deadline: by up to 10 seconds over TCP; over a Unix socket until the server reads on
//             or exits.
#ifndef ROPE_CLIENT_H_
#define ROPE_CLIENT_H_

#include <future>
#include <memory>
#include <string>

#include "rope/arena.h"
#include "rope/async.h"
#include "rope/connection.h"
#include "rope/describe.h"
#include "rope/device.h"
#include "rope/options.h"
#include "rope/prepared.h"
#include "rope/rotate.h"
#include "rope/status.h"
#include "rope/tables.h"

namespace rope::client {

class Client {
 public:
  // A client of a connection of another kind, such as a mock (mock.h). REQUIRES: not null.
  explicit Client(std::shared_ptr<Connection> connection);

  // Connects to "HOST:PORT" or "unix:PATH" and checks the server's health; or to "inproc:", the
  // engine in this process (embedded.h). HOST without a port means 50051; "https://" before it
  // means TLS, "http://" is ignored.
  //
  // Several servers: "10.0.0.1:50051,10.0.0.2:50051", or "dns:///NAME:PORT" for every address of a
  // name. Calls take turns among the servers that say they serve (grpc.health.v1 Watch), or among
  // all that answer without require_serving. What one server knows the others may not: names and
  // config_ids are looked up on each, lists are those of the server that answers, and a prepared
  // rotation goes whole to a server that does not know it yet.
  // INVALID_ARGUMENT: an empty target, names or paths among several addresses, a negative size,
  // transports that the sizes rule out, or TLS files and tokens that options.h does not admit.
  // UNAVAILABLE: no connection within the timeout, or the server does not serve (unless
  // require_serving is false). FAILED_PRECONDITION: none of ConnectOptions::transports is
  // available; "inproc:" without rope::embedded::Enable; Forks. RESOURCE_EXHAUSTED: not enough
  // memory for arena_bytes.
  static Result<Client> Connect(const std::string& target, const ConnectOptions& options = {});

  // The arena of ConnectOptions::arena_bytes. Copies of the client share it. It is usable even if
  // it could not be shared with the server (transport() is then kInline).
  Arena arena() const;
  // The current transport of tensors in the arena or in staging memory. Redialing a lost connection
  // may change the transport to kInline.
  ChosenTransport transport() const;

  // Gives the server memory that the program has already, over a connection of its own. Calls of
  // Rotate and RotateAsync whose tensors all lie in it then run there, as in the arena. Only a
  // memfd of ordinary pages with F_SEAL_SHRINK is given: access to a file that can lose pages would
  // end the server. For any other file, and where there is no shared memory,
  // ImportedMemory::transport is kInline, and says why. The whole file counts towards the server's
  // bounds of shared memory.
  // INVALID_ARGUMENT: a part past the end of the file. UNAVAILABLE: no connection.
  // RESOURCE_EXHAUSTED: the part cannot be mapped.
  Result<ImportedMemory> ImportMemory(const MemoryFile& file,
                                      const CallOptions& options = {}) const;

  // Rotates the tensors of `request` and blocks until the reply.
  // INVALID_ARGUMENT: a malformed field. OUT_OF_RANGE: a position above 2^30. NOT_FOUND: an unknown
  // model or config_id. RESOURCE_EXHAUSTED: a full server, after all retries, or a fixed limit.
  Result<RotateReply> Rotate(const RotateRequest& request, const CallOptions& options = {}) const;

  // Validates what stays the same in repeated requests, once; RotateRequest::prepared then takes
  // the result, in synchronous and asynchronous calls. The values in `request` are ignored
  // (RotateRequest::prepared lists them): positions and `data` may be unset. Rows have their type
  // and shape here; pages and slots as many entries as in each call.
  // `open_axis`: "B", "S" or "T" if calls differ in the length of that axis; its length in the
  // tensors' shapes is then the largest that a call may have. Empty: every call has these shapes.
  // INVALID_ARGUMENT: another axis; else as Rotate. UNIMPLEMENTED: the server is older than this
  // library.
  Result<PreparedRotation> Prepare(const RotateRequest& request, const std::string& open_axis = {},
                                   const CallOptions& options = {}) const;

  // Prepare, of a rope.v1.PrepareRequest as JSON with the field names of proto/rope/v1. Values in
  // it are refused, not ignored. INVALID_ARGUMENT: also, JSON that is malformed, or has a field
  // that the request does not have; output.in_place.
  Result<PreparedRotation> PrepareJson(const std::string& request,
                                       const CallOptions& options = {}) const;

  // Starts a Rotate and returns at once. `callback` receives the result of the call exactly once,
  // on a background thread (async.h).
  Call RotateAsync(const RotateRequest& request, RotateCallback callback,
                   const CallOptions& options = {}) const;
  // The same with a future instead of a callback.
  std::future<Result<RotateReply>> RotateFuture(const RotateRequest& request,
                                                const CallOptions& options = {}) const;

  // Experimental: no GPU has run it yet. Rotates tensors in memory of a GPU, each with `memory`
  // kCuda and an `output`, in an engine of this process: the work is enqueued on the queue's
  // stream, and the call returns at once. It neither waits nor allocates, but for the first call of
  // a GPU, which loads and checks the kernels, and of a table (DeviceQueue::positions_max), which
  // is then built and stays as long as the engine. After them a stream may be captured: a graph
  // reads the positions that lie on the GPU again in each replay, and goes before the engine.
  // Nobody checks positions on the GPU: outside of the table a token takes its last row, and
  // counts. The reply's stage times are those of the host; elements that saturate are not counted.
  // INVALID_ARGUMENT: also, host memory; memory of another device. UNIMPLEMENTED: a connection to a
  // server; a build without kernels; rows, norm weights, slots, a channel stride other than 1,
  // conversions, sizes that are no multiples of 16 bytes. UNAVAILABLE: no driver, no GPU, CUDA that
  // was started before this process was forked. FAILED_PRECONDITION: a capture before the first
  // call. OUT_OF_RANGE: a start past the table. RESOURCE_EXHAUSTED:
  // embedded::Options::device_table_bytes. INTERNAL: a GPU that fails or that computes wrongly.
  Result<RotateReply> Enqueue(const RotateRequest& request, const DeviceQueue& queue) const;

  // Waits until the server has finished with the arena for every call that began before the fence,
  // on any thread. This includes calls that ended early (DEADLINE_EXCEEDED, CANCELLED): after OK
  // their slots may be reused. Calls that begin during the fence proceed and are not waited for.
  // Returns OK at once if no arena is shared with the server.
  // DEADLINE_EXCEEDED: the server is still at work; call Fence again to go on waiting.
  // UNAVAILABLE: a connection that shared the arena was lost since the last Fence, so the end of
  // the server's work cannot be observed; reported once. RESOURCE_EXHAUSTED: too many fences in a
  // row timed out; treat it as DEADLINE_EXCEEDED. FAILED_PRECONDITION: called in a callback, where
  // it cannot wait. UNIMPLEMENTED: the server is older than this library.
  Status Fence(const CallOptions& options = {}) const;

  // A method of rope.v1.RopeService by its name, with its request and its answer as JSON, and the
  // field names of proto/rope/v1. INVALID_ARGUMENT: also, another method; JSON that is malformed,
  // or has a field that the request does not have.
  Result<std::string> CallJson(const std::string& method, const std::string& request,
                               const CallOptions& options = {}) const;

  // Resolves an embedding: its frequencies, attention factor, warnings and rows. Errors: as Rotate.
  Result<DescribeReply> Describe(const DescribeRequest& request,
                                 const CallOptions& options = {}) const;
  // The same answer as JSON, with the field names of proto/rope/v1/describe.proto.
  Result<std::string> DescribeJson(const DescribeRequest& request,
                                   const CallOptions& options = {}) const;

  // Exact cos and sin in the layout of an engine. They are computed for the call: about 0.3
  // microseconds for each pair, a second for the largest tables.
  // INVALID_ARGUMENT, OUT_OF_RANGE: the field and its range. RESOURCE_EXHAUSTED: too many rows or
  // bytes for one call.
  Result<TablesReply> GetTables(const TablesRequest& request,
                                const CallOptions& options = {}) const;

  // The health of one service; of the whole server if `service` is empty. NOT_FOUND: the server has
  // no such service.
  Result<ServingStatus> Health(const std::string& service = {},
                               const CallOptions& options = {}) const;

 private:
  bool is_of_parent() const;

  std::shared_ptr<Connection> connection_;
  int forks_;  // of this process when the client was made
};

// A reply as the JSON that DescribeJson returns for it.
Result<std::string> ToJson(const DescribeReply& reply);

}  // namespace rope::client

#endif  // ROPE_CLIENT_H_
