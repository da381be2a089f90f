// Imports: the memory that a program has imported into a connection, each part with a connector of
// its own, whose arena it is.
//
// Threading:  Thread-safe. Without imports, Find takes no lock.
// Ownership:  Shares the connectors with the calls that use them.
#ifndef ROPE_CLIENT_IMPORTS_H_
#define ROPE_CLIENT_IMPORTS_H_

#include <atomic>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/transport/connector.h"
#include "proto/mutex.h"
#include "rope/rotate.h"

namespace rope::client {

class Imports : public std::enable_shared_from_this<Imports> {
 public:
  // Adds a connector that has connected. The import ends with the last copy of the result.
  std::shared_ptr<void> Add(std::shared_ptr<Connector> connector);
  // The connector in whose memory all tensors of `request` lie; null: none.
  std::shared_ptr<Connector> Find(const RotateRequest& request) const;
  std::vector<std::shared_ptr<Connector>> All() const;

 private:
  mutable proto::Mutex mu_;
  std::vector<std::shared_ptr<Connector>> connectors_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> any_ = false;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_IMPORTS_H_
