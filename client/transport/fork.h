// Forks: a child must not use what its parent connected. gRPC's threads are not in the child, its
// epoll descriptor is the parent's too, and so are the ring and the sockets.
//
// Threading:  Thread-safe.
#ifndef ROPE_CLIENT_TRANSPORT_FORK_H_
#define ROPE_CLIENT_TRANSPORT_FORK_H_

#include <memory>
#include <utility>

#include "rope/status.h"

namespace rope::client {

// How many forks lie between this process and the first that asked.
int ForkCount();

// Notes that this process connects. FAILED_PRECONDITION: one that it was forked from had connected,
// so that gRPC does not work here.
Status NoteConnect();

// FAILED_PRECONDITION, of an object that was made at another ForkCount.
Status MadeByParent();

// Keeps an object that a child must not destroy until the child ends.
void KeepUntilExit(std::shared_ptr<void> object);

// A pointer whose object is destroyed only in the process that called this.
template <typename T>
std::shared_ptr<T> DestroyedHereOnly(std::shared_ptr<T> object) {
  T* const raw = object.get();
  return {raw, [object = std::move(object), forks = ForkCount()](T*) mutable {
            if (forks != ForkCount()) KeepUntilExit(std::move(object));
          }};
}

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_FORK_H_
