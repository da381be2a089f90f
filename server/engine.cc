#include "server/engine.h"

#include "kernels/status_macros.h"
#include "server/limits.h"
#include "server/validate.h"

namespace rope::server {

absl::Status Engine::Submit(std::unique_ptr<Request>& request) {
  const absl::Time started = clock_.Now();
  ROPE_ASSIGN_OR_RETURN(request->plan, Validate(request->message, request->split, registry_));
  // Twice: the bytes that came in, and those that go out, each counted as the larger of them.
  const Plan& plan = request->plan;
  ROPE_ASSIGN_OR_RETURN(request->permit,
                        admission_.Admit(2 * plan.bytes() + limits::kTokenBytes * plan.tokens));
  request->stages.set_validate(absl::ToDoubleMicroseconds(clock_.Now() - started));
  return batcher_.Enqueue(request);
}

}  // namespace rope::server
