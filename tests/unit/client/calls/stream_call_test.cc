#include "client/calls/stream_call.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "proto/wire/error_details.h"
#include "rope/client.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/fake_server.h"

namespace rope::client {
namespace {

using std::chrono::milliseconds;

// The values as a [1, n] tensor of float32.
RotateRequest RequestFor(const std::vector<float>& data, const std::string& id = {},
                         float* output = nullptr) {
  RotateRequest request;
  request.request_id = id;
  request.rope.model = "m";
  request.positions.start = 0;
  request.tensors = {{.layout = "TD",
                      .shape = {1, static_cast<int64_t>(data.size())},
                      .data = data.data(),
                      .output = output}};
  return request;
}

v1::RotateStreamResponse ErrorFor(uint64_t sequence, const std::string& message) {
  v1::RotateStreamResponse response;
  response.set_sequence(sequence);
  *response.mutable_rotate()->mutable_error() =
      proto::ErrorMessageOf(absl::InvalidArgumentError(message));
  return response;
}

class StreamCallTest : public ::testing::Test {
 protected:
  RotateStream Open(const StreamOptions& options = {}) {
    return client_.value().OpenStream(options).value();
  }

  // Reads `requests` requests, then calls `then` with them, whose status ends the stream.
  using Requests = std::vector<v1::RotateStreamRequest>;
  void After(size_t requests,
             std::function<grpc::Status(const Requests&, FakeServer::Stream&)> then) {
    server_.OnStream(
        [requests, then = std::move(then)](grpc::ServerContext&, FakeServer::Stream& stream) {
          Requests received(requests);
          for (v1::RotateStreamRequest& request : received) {
            if (!stream.Read(&request)) return grpc::Status::CANCELLED;
          }
          return then(received, stream);
        });
  }
  // Reads but never answers, until the client cancels.
  void NeverAnswer() {
    server_.OnStream([](grpc::ServerContext&, FakeServer::Stream& stream) {
      for (v1::RotateStreamRequest request; stream.Read(&request);) {
      }
      return grpc::Status::CANCELLED;
    });
  }

  const std::vector<float> data_ = {1, 2};
  FakeServer server_;
  Result<Client> client_ = Client::Connect(server_.target());
};

TEST_F(StreamCallTest, AnswersInAnyOrderReachTheirOwnRequests) {
  constexpr size_t kRequests = 20;
  After(kRequests, [](const Requests& requests, FakeServer::Stream& stream) {
    for (auto it = requests.rbegin(); it != requests.rend(); ++it) stream.Write(EchoOf(*it));
    return grpc::Status::OK;
  });
  RotateStream stream = Open();
  std::vector<std::vector<float>> data;
  std::vector<std::future<Result<RotateReply>>> replies;
  for (size_t i = 0; i < kRequests; ++i) {
    data.emplace_back(5000, static_cast<float>(i));
    replies.push_back(stream.RotateFuture(RequestFor(data[i], "same id")));
  }
  for (size_t i = 0; i < kRequests; ++i) {
    ASSERT_OK(reply, replies[i].get());
    EXPECT_EQ(reply->request_id, "same id");
    EXPECT_EQ(static_cast<const float*>(reply->tensors[0].data)[4999], static_cast<float>(i));
  }
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(StreamCallTest, RequestsAreNumberedAndKeepTheCallersId) {
  std::vector<std::pair<uint64_t, std::string>> seen;
  After(3, [&seen](const Requests& requests, FakeServer::Stream& stream) {
    for (const v1::RotateStreamRequest& request : requests) {
      seen.emplace_back(request.sequence(), request.rotate().request_id());
      stream.Write(EchoOf(request));
    }
    return grpc::Status::OK;
  });
  RotateStream stream = Open();
  auto first = stream.RotateFuture(RequestFor(data_, "same"));
  auto second = stream.RotateFuture(RequestFor(data_, "same"));
  auto third = stream.RotateFuture(RequestFor(data_));
  EXPECT_EQ(first.get()->request_id, "same");
  EXPECT_EQ(second.get()->request_id, "same");
  EXPECT_TRUE(third.get().ok());  // `seen` is complete once this is ready
  using Seen = std::pair<uint64_t, std::string>;
  EXPECT_THAT(seen, ::testing::ElementsAre(Seen(1, "same"), Seen(2, "same"), Seen(3, "")));
}

TEST_F(StreamCallTest, CancelledRequestIsNamedToTheServerAndItsAnswerEndsIt) {
  server_.OnStream([](grpc::ServerContext&, FakeServer::Stream& stream) {
    v1::RotateStreamRequest request;
    stream.Read(&request);
    v1::RotateStreamRequest cancel;
    stream.Read(&cancel);
    EXPECT_EQ(cancel.sequence(), request.sequence());
    EXPECT_TRUE(cancel.has_cancel());
    v1::RotateStreamResponse response;
    response.set_sequence(request.sequence());
    *response.mutable_rotate()->mutable_error() =
        proto::ErrorMessageOf(absl::CancelledError("request: cancelled"));
    stream.Write(response);
    return grpc::Status::OK;
  });
  RotateStream stream = Open();
  std::promise<Status> ended;
  uint64_t sequence = 0;
  const auto callback = [&ended](const Result<RotateReply>& reply) {
    ended.set_value(reply.status());
  };
  ASSERT_TRUE(stream.Rotate(RequestFor(data_), callback, &sequence).ok());
  EXPECT_EQ(sequence, 1U);
  stream.CancelRequest(sequence);
  stream.CancelRequest(99);  // no such request: nothing is sent
  EXPECT_EQ(ended.get_future().get().code(), StatusCode::kCancelled);
  stream.CancelRequest(sequence);  // answered: nothing is sent
}

TEST_F(StreamCallTest, LargeTensorComesBackInPlace) {
  server_.OnStream(&EchoStream);
  RotateStream stream = Open();
  std::vector<float> data(4 << 20);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  const std::vector<float> copy = data;
  ASSERT_TRUE(stream.RotateFuture(RequestFor(data, "", data.data())).get().ok());
  EXPECT_EQ(data, copy);
}

TEST_F(StreamCallTest, ErrorOfOneRequestLeavesTheOthers) {
  After(3, [](const Requests& requests, FakeServer::Stream& stream) {
    v1::RotateStreamResponse refused = ErrorFor(requests[1].sequence(), "x: got 1, want 2");
    refused.mutable_rotate()->mutable_error()->set_retry_delay_ms(20);
    stream.Write(refused);
    stream.Write(EchoOf(requests[0]));
    stream.Write(EchoOf(requests[2]));
    return grpc::Status::OK;
  });
  RotateStream stream = Open();
  auto first = stream.RotateFuture(RequestFor(data_));
  auto second = stream.RotateFuture(RequestFor(data_));
  auto third = stream.RotateFuture(RequestFor(data_));
  const Status refused = second.get().status();
  EXPECT_EQ(refused.ToString(), "INVALID_ARGUMENT: x: got 1, want 2");
  EXPECT_EQ(refused.detail().retry_delay_ms, 20);
  EXPECT_FALSE(refused.detail().may_have_executed);
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE(third.get().ok());
}

TEST_F(StreamCallTest, BrokenStreamEndsWhatIsUnansweredWithItsStatus) {
  After(2, [](const Requests& requests, FakeServer::Stream& stream) {
    stream.Write(EchoOf(requests[0]));
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining");
  });
  RotateStream stream = Open();
  auto first = stream.RotateFuture(RequestFor(data_));
  auto second = stream.RotateFuture(RequestFor(data_));
  EXPECT_TRUE(first.get().ok());
  const Status broken = second.get().status();
  EXPECT_EQ(broken.ToString(), "UNAVAILABLE: draining");
  EXPECT_TRUE(broken.detail().may_have_executed);  // it is unknown whether the request ran
  EXPECT_EQ(stream.Finish().ToString(), "UNAVAILABLE: draining");
  EXPECT_EQ(stream.RotateFuture(RequestFor(data_)).get().status().ToString(),
            "UNAVAILABLE: draining");
}

TEST_F(StreamCallTest, ServerThatSaysNothingRanIsBelieved) {
  After(1, [](const Requests&, FakeServer::Stream&) {
    return grpc::Status(
        grpc::StatusCode::UNAVAILABLE, "draining",
        proto::EncodeStatusDetails(proto::ErrorMessageOf(absl::UnavailableError("draining"))));
  });
  RotateStream stream = Open();
  EXPECT_FALSE(stream.RotateFuture(RequestFor(data_)).get().status().detail().may_have_executed);
}

TEST_F(StreamCallTest, RequestThatWasNotSentYetIsKnownNotToHaveRun) {
  std::promise<void> all_taken;
  server_.OnStream([&all_taken](grpc::ServerContext&, FakeServer::Stream&) {
    all_taken.get_future().wait();  // meanwhile it reads nothing, so flow control blocks the client
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
  });
  const std::vector<float> data(4 << 20);
  std::vector<std::future<Result<RotateReply>>> replies;
  RotateStream stream = Open({.bytes_max = int64_t{1} << 30});
  for (int i = 0; i < 4; ++i) replies.push_back(stream.RotateFuture(RequestFor(data)));
  all_taken.set_value();
  EXPECT_TRUE(replies.front().get().status().detail().may_have_executed);
  EXPECT_FALSE(replies.back().get().status().detail().may_have_executed);
}

TEST_F(StreamCallTest, EndWithoutAnAnswerIsUnavailable) {
  After(1, [](const Requests&, FakeServer::Stream&) { return grpc::Status::OK; });
  RotateStream stream = Open();
  EXPECT_EQ(stream.RotateFuture(RequestFor(data_)).get().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(stream.Finish().code(), StatusCode::kUnavailable);
}

TEST_F(StreamCallTest, ServerWithoutStreamsIsUnimplemented) {
  RotateStream stream = Open();
  EXPECT_EQ(stream.RotateFuture(RequestFor(data_)).get().status().code(),
            StatusCode::kUnimplemented);
}

TEST_F(StreamCallTest, AnswerToNobodyBreaksTheStream) {
  After(2, [](const Requests& requests, FakeServer::Stream& stream) {
    v1::RotateStreamResponse response = EchoOf(requests[0]);
    response.set_sequence(99);
    stream.Write(response);
    for (v1::RotateStreamRequest request; stream.Read(&request);) {
    }
    return grpc::Status::OK;
  });
  RotateStream stream = Open();
  auto first = stream.RotateFuture(RequestFor(data_));
  auto second = stream.RotateFuture(RequestFor(data_));
  EXPECT_THAT(first.get().status().ToString(), HasSubstr("INTERNAL: reply: got sequence 99"));
  EXPECT_EQ(second.get().status().code(), StatusCode::kInternal);
}

TEST_F(StreamCallTest, ErrorWithoutNumberBelongsToTheOnlyRequest) {
  server_.OnStream([](grpc::ServerContext&, FakeServer::Stream& stream) {
    v1::RotateStreamRequest request;
    stream.Read(&request);
    stream.Write(ErrorFor(0, "request: got malformed bytes"));
    stream.Read(&request);
    stream.Write(EchoOf(request));
    return grpc::Status::OK;
  });
  RotateStream stream = Open();
  EXPECT_EQ(stream.RotateFuture(RequestFor(data_)).get().status().ToString(),
            "INVALID_ARGUMENT: request: got malformed bytes");
  EXPECT_TRUE(stream.RotateFuture(RequestFor(data_)).get().ok());
}

TEST_F(StreamCallTest, AtTheBoundOfRequestsTheCallBlocksUntilAnAnswer) {
  std::promise<void> answer;
  server_.OnStream([&answer](grpc::ServerContext& context, FakeServer::Stream& stream) {
    answer.get_future().wait();
    return EchoStream(context, stream);
  });
  RotateStream stream = Open({.requests_max = 2});
  auto first = stream.RotateFuture(RequestFor(data_));
  auto second = stream.RotateFuture(RequestFor(data_));
  auto third = std::async(std::launch::async,
                          [&] { return stream.RotateFuture(RequestFor(data_)).get().ok(); });
  EXPECT_EQ(third.wait_for(milliseconds(50)), std::future_status::timeout);
  answer.set_value();
  EXPECT_TRUE(third.get());
}

TEST_F(StreamCallTest, BytesBoundWhatIsInFlightAndALargerRequestGoesAlone) {
  std::atomic<int> in_flight = 0;
  std::atomic<int> in_flight_max = 0;
  server_.OnStream([](grpc::ServerContext& context, FakeServer::Stream& stream) {
    return EchoStream(context, stream);
  });
  const std::vector<float> data(10000);  // 40 KB each
  for (const int64_t bytes_max : {1, 90000}) {
    in_flight_max = 0;
    RotateStream stream = Open({.bytes_max = bytes_max});
    for (int i = 0; i < 50; ++i) {
      const Status status = stream.Rotate(RequestFor(data), [&](const Result<RotateReply>& reply) {
        EXPECT_TRUE(reply.ok());
        --in_flight;
      });
      ASSERT_TRUE(status.ok());
      in_flight_max = std::max<int>(in_flight_max, ++in_flight);
    }
    EXPECT_TRUE(stream.Finish().ok());
    // One more than the bound: a callback counts down before its room is free.
    EXPECT_LE(in_flight_max, bytes_max == 1 ? 1 : 2);
  }
}

TEST_F(StreamCallTest, CallbackHasTheRoomOfItsOwnRequestAndNoMore) {
  server_.OnStream(&EchoStream);
  RotateStream stream = Open({.requests_max = 1});
  std::promise<Status> second_sent;
  std::promise<bool> first_answered;
  const auto on_reply = [&](const Result<RotateReply>&) {
    const Status first = stream.Rotate(RequestFor(data_), [&](const Result<RotateReply>& reply) {
      first_answered.set_value(reply.ok());
    });
    EXPECT_TRUE(first.ok()) << first.ToString();
    if (!first.ok()) first_answered.set_value(false);
    second_sent.set_value(stream.Rotate(RequestFor(data_), [](const Result<RotateReply>&) {}));
  };
  ASSERT_TRUE(stream.Rotate(RequestFor(data_), on_reply).ok());
  EXPECT_EQ(second_sent.get_future().get().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(first_answered.get_future().get());
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(StreamCallTest, FinishWaitsForEveryCallback) {
  server_.OnStream(&EchoStream);
  RotateStream stream = Open();
  std::atomic<int> answered = 0;
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(
        stream.Rotate(RequestFor(data_), [&](const Result<RotateReply>&) { ++answered; }).ok());
  }
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(answered, 500);
  EXPECT_EQ(stream.RotateFuture(RequestFor(data_)).get().status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(StreamCallTest, FinishInACallbackIsRefused) {
  server_.OnStream(&EchoStream);
  RotateStream stream = Open();
  std::promise<Status> status;
  ASSERT_TRUE(stream
                  .Rotate(RequestFor(data_),
                          [&](const Result<RotateReply>&) { status.set_value(stream.Finish()); })
                  .ok());
  EXPECT_EQ(status.get_future().get().code(), StatusCode::kFailedPrecondition);
}

TEST_F(StreamCallTest, CancelEndsTheUnansweredAndABlockedCall) {
  NeverAnswer();
  RotateStream stream = Open({.requests_max = 1});
  auto first = stream.RotateFuture(RequestFor(data_));
  auto blocked = std::async(std::launch::async,
                            [&] { return stream.RotateFuture(RequestFor(data_)).get().status(); });
  EXPECT_EQ(blocked.wait_for(milliseconds(20)), std::future_status::timeout);
  stream.Cancel();
  EXPECT_EQ(first.get().status().ToString(), "CANCELLED: cancelled by the caller");
  EXPECT_EQ(blocked.get().code(), StatusCode::kCancelled);
  EXPECT_EQ(stream.Finish().code(), StatusCode::kCancelled);
}

TEST_F(StreamCallTest, DestructionCancelsAndWaitsForTheCallbacks) {
  NeverAnswer();
  std::atomic<int> cancelled = 0;
  {
    RotateStream stream = Open();
    for (int i = 0; i < 10; ++i) {
      const Status status =
          stream.Rotate(RequestFor(data_), [&cancelled](const Result<RotateReply>& reply) {
            cancelled += reply.status().code() == StatusCode::kCancelled;
          });
      ASSERT_TRUE(status.ok());
    }
  }
  EXPECT_EQ(cancelled, 10);
}

TEST_F(StreamCallTest, StreamMayGoInsideACallback) {
  server_.OnStream(&EchoStream);
  auto stream = std::make_shared<RotateStream>(Open());
  std::promise<void> ended;
  std::promise<void> only_copy_left;
  ASSERT_TRUE(stream
                  ->Rotate(RequestFor(data_),
                           [&, copy = stream](const Result<RotateReply>&) mutable {
                             only_copy_left.get_future().wait();
                             copy.reset();
                             ended.set_value();
                           })
                  .ok());
  stream.reset();
  only_copy_left.set_value();
  ended.get_future().wait();
}

TEST_F(StreamCallTest, WhenTheLastClientGoesTheStreamIsCancelled) {
  NeverAnswer();
  RotateStream stream = Open();
  auto reply = stream.RotateFuture(RequestFor(data_));
  client_ = Status(StatusCode::kUnknown, "gone");
  EXPECT_EQ(reply.get().status().code(), StatusCode::kCancelled);
  EXPECT_EQ(stream.Finish().code(), StatusCode::kCancelled);
  EXPECT_EQ(stream.RotateFuture(RequestFor(data_)).get().status().code(), StatusCode::kCancelled);
}

TEST_F(StreamCallTest, TimeoutOfTheStreamEndsIt) {
  NeverAnswer();
  RotateStream stream = Open({.timeout = milliseconds(50)});
  EXPECT_EQ(stream.RotateFuture(RequestFor(data_)).get().status().code(),
            StatusCode::kDeadlineExceeded);
}

// Threads that send on one stream until it refuses. Each request of 8 KiB, which gRPC borrows.
class Senders {
 public:
  explicit Senders(RotateStream& stream) {
    for (int i = 0; i < 4; ++i) threads_.emplace_back([this, &stream] { Send(stream); });
  }
  ~Senders() { Join(); }
  void Join() {
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

  std::atomic<int> accepted = 0;
  std::atomic<int> succeeded = 0;
  std::atomic<int> failed = 0;

 private:
  void Send(RotateStream& stream) {
    const auto on_reply = [this](const Result<RotateReply>& reply) {
      ++(reply.ok() ? succeeded : failed);
    };
    while (stream.Rotate(RequestFor(data_), on_reply).ok()) ++accepted;
  }

  const std::vector<float> data_ = std::vector<float>(2048);
  std::vector<std::thread> threads_;
};

TEST_F(StreamCallTest, RequestsSentWhileTheStreamEndsAreAllAnswered) {
  After(3, [](const Requests&, FakeServer::Stream&) {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
  });
  for (int round = 0; round < 50; ++round) {
    RotateStream stream = Open();
    Senders senders(stream);
    senders.Join();
    EXPECT_EQ(stream.Finish().code(), StatusCode::kUnavailable);  // once each is answered
    EXPECT_EQ(senders.failed, senders.accepted);
  }
}

TEST_F(StreamCallTest, RequestsAcceptedBeforeFinishAreAllServed) {
  server_.OnStream(&EchoStream);
  for (int round = 0; round < 300; ++round) {
    RotateStream stream = Open({.requests_max = 8});
    Senders senders(stream);
    while (senders.succeeded < 10) std::this_thread::yield();
    EXPECT_TRUE(stream.Finish().ok());
    senders.Join();
    EXPECT_EQ(senders.succeeded, senders.accepted);
  }
}

TEST_F(StreamCallTest, CancellationFollowsTheRequestThatAnotherThreadSends) {
  constexpr uint64_t kRequests = 1000;
  std::atomic<int> early = 0;
  server_.OnStream([&early](grpc::ServerContext&, FakeServer::Stream& stream) {
    uint64_t last = 0;
    for (v1::RotateStreamRequest message; stream.Read(&message);) {
      if (message.has_cancel()) {
        early += message.sequence() > last;
      } else {
        last = message.sequence();
        stream.Write(EchoOf(message));
      }
    }
    return grpc::Status::OK;
  });
  RotateStream stream = Open();
  std::atomic<uint64_t> sent = 0;
  std::thread canceller([&] {
    while (sent < kRequests) stream.CancelRequest(sent + 1);
  });
  while (sent < kRequests) {
    auto reply = stream.RotateFuture(RequestFor(data_));
    ++sent;
    EXPECT_TRUE(reply.get().ok());
  }
  canceller.join();
  EXPECT_EQ(early, 0);
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(StreamCallTest, LongestTimeoutDoesNotOverflow) {
  server_.OnStream(&EchoStream);
  RotateStream stream = Open({.timeout = milliseconds::max()});
  EXPECT_TRUE(stream.RotateFuture(RequestFor(data_)).get().ok());
}

TEST_F(StreamCallTest, BoundsThatAreNotPositiveAreRefused) {
  EXPECT_EQ(client_->OpenStream({.requests_max = 0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->OpenStream({.bytes_max = -1}).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(StreamCallTest, TensorWithoutMemoryIsRefusedAndTheStreamGoesOn) {
  server_.OnStream(&EchoStream);
  RotateStream stream = Open();
  RotateRequest request = RequestFor(data_);
  request.tensors[0].data = nullptr;
  EXPECT_EQ(stream.RotateFuture(request).get().status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(stream.RotateFuture(RequestFor(data_)).get().ok());
}

}  // namespace
}  // namespace rope::client
