// Engine: the request path between an adapter and the batcher, one line a step. Knows no gRPC.
//
// Threading:  Thread-safe.
// Ownership:  Submit takes the request if and only if it returns OK; `done` then runs exactly once,
//             on any thread, possibly before Submit returns.
// Errors:     As RegionIo, Validate, Admission and Batcher. Nothing is reserved before it has been
//             validated.
#ifndef ROPE_SERVER_ENGINE_H_
#define ROPE_SERVER_ENGINE_H_

#include <memory>

#include "absl/status/status.h"
#include "server/admission.h"
#include "server/batcher.h"
#include "server/clock.h"
#include "server/model_registry.h"
#include "server/prepared_requests.h"
#include "server/region_io.h"
#include "server/request.h"

namespace rope::server {

class Engine {
 public:
  // All must outlive the engine.
  Engine(ModelRegistry& registry, PreparedRequests& prepared, Admission& admission,
         Batcher& batcher, const RegionIo& regions, const Clock& clock)
      : registry_(registry),
        prepared_(prepared),
        admission_(admission),
        batcher_(batcher),
        regions_(regions),
        clock_(clock) {}

  absl::Status Submit(std::unique_ptr<Request>& request);

 private:
  // Fills the request's plan.
  absl::Status MakePlan(Request& request);

  ModelRegistry& registry_;
  PreparedRequests& prepared_;
  Admission& admission_;
  Batcher& batcher_;
  const RegionIo& regions_;
  const Clock& clock_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_H_
