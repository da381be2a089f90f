// EmbeddedStream: the StreamConnection (rope/async.h) of a service in this process. Its requests
// are calls of the connection's CallbackThread; it adds their numbers and the bounds of
// StreamOptions.
//
// Threading:  As RotateStream.
// Ownership:  Each request in flight keeps the stream.
#ifndef ROPE_SERVER_EMBEDDED_EMBEDDED_STREAM_H_
#define ROPE_SERVER_EMBEDDED_EMBEDDED_STREAM_H_

#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "proto/mutex.h"
#include "rope/async.h"
#include "server/embedded/local_rotations.h"

namespace rope::embedded {

class EmbeddedStream final : public client::StreamConnection,
                             public std::enable_shared_from_this<EmbeddedStream> {
 public:
  EmbeddedStream(std::shared_ptr<CallbackThread> calls, const client::StreamOptions& options);

  Status Rotate(const client::RotateRequest& request, client::RotateCallback callback,
                uint64_t* sequence) override;
  void CancelRequest(uint64_t sequence) override;
  Status Finish() override;
  void Cancel() override;
  void Abandon() override;

 private:
  // What requests in flight take of the bounds.
  struct Room {
    int64_t requests = 0;
    int64_t bytes = 0;
  };

  // Waits for room and takes it.
  Status TakeRoom(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs a request's callback, which may use its room.
  void Answer(uint64_t sequence, int64_t bytes, const client::RotateCallback& callback,
              Result<client::RotateReply> reply);
  void CancelAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The status with which the stream has ended, or would end now.
  Status End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<CallbackThread> calls_;
  const client::StreamOptions options_;
  const SteadyTime deadline_;

  proto::Mutex mutex_;
  proto::CondVar changed_;
  uint64_t next_sequence_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, LocalService::Cancelled> unanswered_ ABSL_GUARDED_BY(mutex_);
  Room taken_ ABSL_GUARDED_BY(mutex_);
  Room credit_ ABSL_GUARDED_BY(mutex_);  // of the request whose callback runs
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace rope::embedded

#endif  // ROPE_SERVER_EMBEDDED_EMBEDDED_STREAM_H_
