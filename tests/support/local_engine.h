// The server's request path without a network: engine, batcher and executor over one backend.
#ifndef ROPE_TESTS_SUPPORT_LOCAL_ENGINE_H_
#define ROPE_TESTS_SUPPORT_LOCAL_ENGINE_H_

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/backends.h"
#include "kernels/tables/table_cache.h"
#include "proto/mutex.h"
#include "server/clients/buffer_pool.h"
#include "server/clients/limits.h"
#include "server/engine/batcher.h"
#include "server/engine/engine.h"
#include "server/engine/executor.h"
#include "server/limits.h"
#include "server/models/model_registry.h"
#include "tests/support/fake_clock.h"
#include "tests/support/prepared_call.h"
#include "tests/support/received_request.h"
#include "tests/support/test_clients.h"

namespace rope::testing {

// Threading:  As Engine.
// Ownership:  Answered requests must be destroyed before the LocalEngine.
class LocalEngine {
 public:
  // The parts that do not depend on a device; several engines may share them.
  struct State {
    std::unique_ptr<server::ModelRegistry> registry = server::ModelRegistry::Create({}).value();
    kernels::TableCache tables{server::limits::kTableCacheBytes};
    server::BufferPool pool{server::limits::kPooledBytesMax};
    int64_t overwrite_bytes_min = server::limits::kOverwriteBytesMin;
  };

  explicit LocalEngine(
      std::unique_ptr<kernels::Backend> backend = kernels::CreateBackend("reference", {}).value(),
      const server::Batcher::Options& options = {},
      std::shared_ptr<State> state = std::make_shared<State>())
      : state_(std::move(state)),
        devices_(std::move(backend)),
        batcher_(options, clock_,
                 [this](absl::Span<server::Slice> slices) { executor_.Run(slices); }) {}

  server::ModelRegistry& registry() { return *state_->registry; }
  server::PreparedRotations& prepared() { return prepared_; }
  TestClients& clients() { return clients_; }

  // The id of a prepared request.
  absl::StatusOr<std::string> Prepare(const v1::PrepareRequest& request, uint64_t session = 0) {
    auto prepared = PrepareReceived(request, *state_->registry);
    if (!prepared.ok()) return prepared.status();
    const absl::Status kept = prepared_.Keep(*prepared, clients_.Of(session).owner());
    if (!kept.ok()) return kept;
    return (*prepared)->id;
  }

  absl::StatusOr<server::Plan> Check(const v1::RotateRequest& sent) {
    return ReceivedRequest(sent).Validate(*state_->registry);
  }

  // `done` runs exactly once if this returns OK, on any thread.
  absl::Status Submit(const ReceivedRequest& received, server::Request::Done done) {
    std::unique_ptr<server::Request> request = received.MakeRequest();
    request->done = std::move(done);
    return SubmitAndRun(request);
  }

  // Submits as a receiving thread that has no other event. `done` runs as with Submit.
  absl::Status SubmitAndRun(std::unique_ptr<server::Request>& request) {
    clients_.Fill(request->arrival);
    absl::Status status = engine_.Submit(request);
    while (batcher_.RunGathered()) continue;
    return status;
  }

  // Runs `request` and returns it with its status, also after a failure.
  absl::Status Run(std::unique_ptr<server::Request>& request) {
    proto::Notification answered;
    absl::Status status;
    std::unique_ptr<server::Request> finished;
    request->done = [&](std::unique_ptr<server::Request> ran, absl::Status how) {
      finished = std::move(ran);
      status = std::move(how);
      answered.Notify();
    };
    absl::Status submitted = SubmitAndRun(request);
    if (!submitted.ok()) return submitted;
    answered.WaitForNotification();
    request = std::move(finished);
    return status;
  }

  // The finished request.
  absl::StatusOr<std::unique_ptr<server::Request>> Run(const v1::RotateRequest& sent) {
    std::unique_ptr<server::Request> request = ReceivedRequest(sent).MakeRequest();
    const absl::Status status = Run(request);
    if (!status.ok()) return status;
    return request;
  }

  // The first tensor of the answer. REQUIRES: the request's tensors are fp32.
  absl::StatusOr<std::vector<float>> Rotate(const v1::RotateRequest& sent) {
    const auto finished = Run(sent);
    if (!finished.ok()) return finished.status();
    const server::PooledBuffer& output = (*finished)->run.outputs.front();
    std::vector<float> values(static_cast<size_t>(output.size()) / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), output.data(), values.size() * sizeof(float));
    return values;
  }

 private:
  const std::shared_ptr<State> state_;
  FakeClock clock_;
  server::DeviceRouter devices_;
  server::Executor executor_{devices_, state_->tables, state_->pool};
  TestClients clients_{{.requests = server::limits::kAdmittedRequestsMax,
                        .request_bytes = 2 * server::limits::kGiB,
                        .region_bytes = server::limits::kGiB}};
  server::Batcher batcher_;
  server::PreparedRotations prepared_{{}};
  server::Engine engine_{*state_->registry,
                         prepared_,
                         batcher_,
                         clock_,
                         {.overwritten_min = state_->overwrite_bytes_min}};
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_LOCAL_ENGINE_H_
