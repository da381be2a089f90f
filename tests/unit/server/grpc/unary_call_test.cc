
#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server_posix.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <functional>
#include <memory>
#include <thread>

#include "proto/mutex.h"
#include "rope/v1/rope_service.grpc.pb.h"
#include "server/clock.h"
#include "server/grpc/poll_loop.h"
#include "server/grpc/queue_call.h"
#include "server/request/request.h"
#include "server/telemetry/counts.h"
#include "tests/support/test_clients.h"

namespace rope::server {
namespace {

// A server with one method, whose calls the test answers, and a connection to it.
class UnaryCallTest : public ::testing::Test {
 protected:
  UnaryCallTest() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    loop_ = std::make_unique<PollLoop>(builder, 1, absl::ZeroDuration(), [] { return false; });
    server_ = builder.BuildAndStart();
    UnaryCall::Arm(method_, *loop_->queues().front(), limits::kArmedCalls);
    loop_->Start();
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    descriptor_ = ends[0];
    grpc::AddInsecureChannelFromFd(server_.get(), ends[0]);
    channel_ = grpc::CreateInsecureChannelFromFd("test", ends[1]);
    stub_ = v1::RopeService::NewStub(channel_);
  }
  ~UnaryCallTest() override {
    server_->Shutdown();
    in_flight_.AwaitNoneOpen();
    loop_->Shutdown();
  }

  // The code of a call that ends before its message has come. `act` runs once the server waits for
  // the message.
  grpc::StatusCode CodeOfCallWithoutMessage(
      const std::function<void(grpc::GenericClientAsyncReaderWriter&)>& act) {
    grpc::CompletionQueue queue;
    grpc::ClientContext context;
    const auto call = grpc::GenericStub(channel_).PrepareCall(
        &context, "/rope.v1.RopeService/ListModels", &queue);
    void* tag = nullptr;
    bool ok = false;
    call->StartCall(nullptr);
    EXPECT_TRUE(queue.Next(&tag, &ok));
    while (reads_.count() == 0) std::this_thread::yield();
    act(*call);
    grpc::Status status;
    call->Finish(&status, &status);
    while (queue.Next(&tag, &ok) && tag != &status) continue;
    return status.error_code();
  }

  // The descriptor of the server's end; 0: closed.
  ino_t Inode() const {
    struct stat state = {};
    return fstat(descriptor_, &state) == 0 ? state.st_ino : 0;
  }

  const SteadyClock clock_;
  MessageReads reads_{clock_};
  testing::TestClients clients_;
  CallsInFlight in_flight_;
  RawService<v1::RopeService> service_{
      *v1::GetServerInfoRequest::descriptor()->file()->FindServiceByName("RopeService")};
  CallCounts counts_;
  UnaryCall* call_ = nullptr;  // set before `received_`
  proto::Notification received_;
  const UnaryCall::Method method_ = {{service_.RequestOf("ListModels"),
                                      {&in_flight_, &clients_.connections, &reads_},
                                      {},
                                      &counts_},
                                     [this](ServiceCall& call) {
                                       call_ = &static_cast<UnaryCall&>(call);
                                       received_.Notify();
                                     }};
  std::unique_ptr<PollLoop> loop_;
  std::unique_ptr<grpc::Server> server_;
  int descriptor_ = -1;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::RopeService::Stub> stub_;
};

// Owners and sessions rely on this: no connection gets a descriptor while a call of it lives.
TEST_F(UnaryCallTest, DescriptorOfAConnectionStaysOpenUntilItsLastCallIsAnswered) {
  const ino_t inode = Inode();
  auto context = std::make_unique<grpc::ClientContext>();
  std::thread client([&] {
    v1::ListModelsResponse response;
    EXPECT_EQ(stub_->ListModels(context.get(), {}, &response).error_code(),
              grpc::StatusCode::CANCELLED);
  });
  received_.WaitForNotification();
  context->TryCancel();
  client.join();
  context.reset();
  stub_.reset();
  channel_.reset();  // closes the client's end
  while (!call_->cancelled()->load()) std::this_thread::yield();
  EXPECT_EQ(Inode(), inode);
  call_->Finish(absl::OkStatus(), grpc::ByteBuffer());
  while (Inode() == inode) std::this_thread::yield();
  EXPECT_EQ(counts_.started(), 1);
  EXPECT_EQ(counts_.counts()[0].duration.count(), 0) << "the handler ends what it gets";
}

TEST_F(UnaryCallTest, CallWhoseMessageDoesNotComeInTimeBeginsAndEnds) {
  const absl::Status late = absl::DeadlineExceededError("late");
  EXPECT_EQ(CodeOfCallWithoutMessage([&](auto&) { reads_.EndSince(absl::InfiniteFuture(), late); }),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(counts_.started(), 1);
  EXPECT_EQ(counts_.counts()[IndexOf(late.code())].duration.count(), 1);
}

TEST_F(UnaryCallTest, CallWithoutAMessageBeginsAndEnds) {
  EXPECT_EQ(CodeOfCallWithoutMessage([](auto& call) { call.WritesDone(nullptr); }),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(counts_.started(), 1);
  EXPECT_EQ(counts_.counts()[IndexOf(absl::StatusCode::kInvalidArgument)].duration.count(), 1);
}

}  // namespace
}  // namespace rope::server
