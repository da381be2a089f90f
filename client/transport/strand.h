// Strand: the threads that handle events of one connection, one event after another.
//
// Threading:  Thread-safe.
#ifndef ROPE_CLIENT_TRANSPORT_STRAND_H_
#define ROPE_CLIENT_TRANSPORT_STRAND_H_

#include "proto/mutex.h"

namespace rope::client {

class Strand {
 public:
  virtual ~Strand() = default;
  // Makes the calling thread one of them, before it handles anything.
  virtual void EnterThread() const = 0;
  // Held while an event is handled.
  virtual proto::Mutex& turn() = 0;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_STRAND_H_
