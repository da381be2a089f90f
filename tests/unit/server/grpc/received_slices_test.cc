// Received messages that are freed while gRPC's memory quota is full.
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "proto/mutex.h"
#include "rope/v1/rope_service.grpc.pb.h"
#include "server/clock.h"
#include "server/grpc/poll_loop.h"
#include "server/grpc/queue_call.h"
#include "server/grpc/rope_codec.h"
#include "server/limits.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_clients.h"

namespace rope::server {
namespace {

constexpr size_t kCalls = 8;

class ReceivedSlicesTest : public ::testing::Test {
 protected:
  ReceivedSlicesTest() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    builder.SetResourceQuota(quota_);
    loop_ = std::make_unique<PollLoop>(builder, 1, absl::ZeroDuration(), [] { return false; });
    server_ = builder.BuildAndStart();
    UnaryCall::Arm(method_, *loop_->queues().front(), kCalls);
    loop_->Start();
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    grpc::AddInsecureChannelFromFd(server_.get(), ends[0]);
    stub_ = v1::RopeService::NewStub(grpc::CreateInsecureChannelFromFd("test", ends[1]));
  }
  ~ReceivedSlicesTest() override {
    server_->Shutdown();
    in_flight_.AwaitNoneOpen();
    loop_->Shutdown();
    client_queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (client_queue_.Next(&tag, &ok)) continue;
  }

  // A call of the client, which the quota may end.
  struct Sent {
    grpc::ClientContext context;
    v1::RotateResponse response;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::RotateResponse>> reader;
  };
  void Send(const v1::RotateRequest& request) {
    Sent& sent = sent_.emplace_back();
    sent.reader = stub_->AsyncRotate(&sent.context, request, &client_queue_);
    sent.reader->Finish(&sent.response, &sent.status, nullptr);
  }
  // Waits for the handler.
  std::vector<ServiceCall*> Received(size_t count) {
    proto::MutexLock lock(&mutex_);
    while (calls_.size() < count) arrived_.Wait(&mutex_);
    return calls_;
  }

  grpc::ResourceQuota quota_{"test"};
  const SteadyClock clock_;
  MessageReads reads_{clock_};
  testing::TestClients clients_;
  CallsInFlight in_flight_;
  RawService<v1::RopeService> service_{
      *v1::GetServerInfoRequest::descriptor()->file()->FindServiceByName("RopeService")};
  proto::Mutex mutex_;
  proto::CondVar arrived_;
  std::vector<ServiceCall*> calls_ ABSL_GUARDED_BY(mutex_);
  const UnaryCall::Method method_ = {
      {service_.RequestOf("Rotate"), {&in_flight_, &clients_.connections, &reads_}},
      [this](ServiceCall& call) {
        proto::MutexLock lock(&mutex_);
        calls_.push_back(&call);
        arrived_.Signal();
      }};
  std::unique_ptr<PollLoop> loop_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::RopeService::Stub> stub_;
  grpc::CompletionQueue client_queue_;
  std::deque<Sent> sent_;
};

// gRPC ends the process if their last owner is a grpc::Slice.
TEST_F(ReceivedSlicesTest, MessagesAreFreedOnAThreadOfOursWhileTheQuotaIsFull) {
  v1::RotateRequest request;
  request.add_tensors()->mutable_array()->set_raw(std::string(limits::kMiB, 'x'));
  for (size_t i = 0; i < kCalls; ++i) Send(request);
  const std::vector<ServiceCall*> calls = Received(kCalls);
  quota_.Resize(limits::kMiB);
  for (ServiceCall* call : calls) {
    {
      ReceivedSlices message;
      ASSERT_THAT(message.Take(call->request()), IsOk());
    }
    call->Finish(absl::OkStatus(), grpc::ByteBuffer());
  }
}

}  // namespace
}  // namespace rope::server
