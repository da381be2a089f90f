#include "client/transport/stub.h"

#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <sched.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "client/error.h"
#include "client/transport/fork.h"
#include "client/transport/waiter.h"
#include "proto/wire/error_details.h"

namespace rope::client {
namespace {

using std::chrono::microseconds;
using Clock = std::chrono::steady_clock;

// The completion queue of the calling thread, shut down and drained when the thread ends. It is
// left alone in a forked child, where gRPC would wait for the parent's threads. A thread makes one
// synchronous call at a time, so at most one event is in the queue.
grpc::CompletionQueue& QueueOfThread() {
  const auto end = [](grpc::CompletionQueue* queue) {
    const std::unique_ptr<grpc::CompletionQueue> owned(queue);
    owned->Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (owned->Next(&tag, &ok)) {
    }
  };
  thread_local const std::shared_ptr<grpc::CompletionQueue> queue =
      DestroyedHereOnly(std::shared_ptr<grpc::CompletionQueue>(
          std::make_unique<grpc::CompletionQueue>().release(), end));
  return *queue;
}

// Waits for the event of the RPC that this thread has just started. gRPC does the I/O of the RPC
// inside AsyncNext and Next, on this thread: polling saves the wake-up of another thread.
void AwaitEvent(grpc::CompletionQueue& queue, microseconds spin) {
  void* tag = nullptr;
  bool ok = false;
  const Waiter waiter;
  const auto end = Clock::now() + spin;
  while (waiter.may_poll() && Clock::now() < end) {
    const auto now = gpr_time_0(GPR_CLOCK_MONOTONIC);
    if (queue.AsyncNext(&tag, &ok, now) != grpc::CompletionQueue::TIMEOUT) return;
    sched_yield();  // the thread that produces the answer may need this processor
  }
  queue.Next(&tag, &ok);
}

// Names to which gRPC gives a meaning: it would replace them, or end the process.
bool IsOfGrpc(absl::string_view name) {
  for (const absl::string_view prefix : {"grpc", "lb-", "content-"}) {
    if (absl::StartsWith(name, prefix)) return true;
  }
  return name == "host" || name == "te" || name == "user-agent" || name == "connection";
}

// Whether the call was cut on its way. The server gives every INTERNAL an error detail, and never
// answers CANCELLED while the client waits. gRPC makes INTERNAL of a stream that a proxy resets
// because it has lost the server, and CANCELLED of one that a server resets as it shuts down.
bool WasCut(StatusCode code, bool has_detail) {
  return !has_detail && (code == StatusCode::kCancelled || code == StatusCode::kInternal);
}

// The time `timeout` from now, on the monotonic clock. Clamped to one day.
gpr_timespec DeadlineAfter(microseconds timeout) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_micros(BoundedTimeout(timeout).count(), GPR_TIMESPAN));
}

// gRPC's refusal of a message, "Sent message larger than max (300 vs. 200)", as this library words
// errors; empty: another error. A message that is received too large is the server's or an answer.
std::string TooLarge(absl::string_view message) {
  constexpr absl::string_view kText = " message larger than max (";
  const size_t at = message.find(kText);
  if (at == absl::string_view::npos) return "";
  const std::vector<absl::string_view> numbers =
      absl::StrSplit(message.substr(at + kText.size()), absl::MaxSplits(absl::ByAnyChar(" )"), 3));
  if (numbers.size() < 3) return "";
  const bool sent = absl::EndsWith(message.substr(0, at), "Sent");
  return absl::StrCat("message: got ", numbers[0], " bytes, want at most ", numbers[2], " (",
                      sent ? "" : "--max_message_bytes of the server, or ",
                      "max_message_bytes of the client); send fewer tokens a call, or use a Unix "
                      "socket with shared memory");
}

// Of an RPC that has ended, and that this side has not cancelled.
// Three sources, the later overriding the earlier: the status code, the rope.v1.Error in the status
// details, and the server's grpc-retry-pushback-ms trailer, of which the larger delay counts.
Status ToStatus(const grpc::Status& status, const grpc::ClientContext& context) {
  ErrorDetail detail;
  auto code = static_cast<StatusCode>(status.error_code());
  std::string message = status.error_message();
  auto error = proto::DecodeStatusDetails(status.error_details());
  if (WasCut(code, error.has_value())) {
    code = StatusCode::kUnavailable;
    message = absl::StrCat("server: ended the call (", message, ")");
  }
  if (std::string text = TooLarge(message); !text.empty()) message = std::move(text);
  // The defaults; the error detail, if there is one, replaces them.
  detail.reason = ReasonOf(code);
  detail.may_have_executed =
      code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded;
  if (error.has_value()) detail = DetailOf(*error);
  const auto& trailers = context.GetServerTrailingMetadata();
  if (const auto it = trailers.find("grpc-retry-pushback-ms"); it != trailers.end()) {
    int64_t delay_ms = 0;
    if (absl::SimpleAtoi(absl::string_view(it->second.data(), it->second.size()), &delay_ms)) {
      detail.retry_delay_ms = std::max(detail.retry_delay_ms, delay_ms);
    }
  }
  return Status(code, std::move(message), std::move(detail));
}

}  // namespace

Status CheckMetadata(const Metadata& metadata) {
  for (size_t i = 0; i < metadata.size(); ++i) {
    const auto& [name, value] = metadata[i];
    const grpc_slice key = grpc_slice_from_static_buffer(name.data(), name.size());
    const grpc_slice text = grpc_slice_from_static_buffer(value.data(), value.size());
    const std::string field = absl::StrCat("metadata[", i, "]");
    if (grpc_header_key_is_legal(key) == 0 || IsOfGrpc(name)) {
      return InvalidField(field, absl::StrCat("the name \"", name, "\""),
                          "a-z 0-9 - _ . and no name of gRPC's own");
    }
    if (grpc_is_binary_header(key) == 0 && grpc_header_nonbin_value_is_legal(text) == 0) {
      return InvalidField(field, absl::StrCat("another value of ", name),
                          "printable ASCII, or a name that ends with -bin");
    }
  }
  return {};
}

Stub::Stub(std::shared_ptr<grpc::Channel> channel, const ConnectOptions& options,
           std::shared_ptr<const BearerToken> token)
    : channel_(std::move(channel)), spin_(SpinOf(options)), token_(std::move(token)) {}

bool Stub::WaitForConnected(microseconds timeout) const {
  return channel_->WaitForConnected(DeadlineAfter(timeout));
}

Result<grpc::ByteBuffer> Stub::Call(const std::string& method, const grpc::ByteBuffer& request,
                                    const RpcOptions& options) const {
  grpc::CompletionQueue& queue = QueueOfThread();
  UnaryAttempt attempt;
  Start(method, request, options, &queue, nullptr, attempt);
  AwaitEvent(queue, spin_);
  return ResultOf(attempt);
}

void Stub::Start(const std::string& method, const grpc::ByteBuffer& request,
                 const RpcOptions& options, grpc::CompletionQueue* queue, void* tag,
                 UnaryAttempt& attempt) const {
  attempt.context.set_deadline(DeadlineAfter(options.timeout));
  if (options.metadata != nullptr) {
    for (const auto& [name, value] : *options.metadata) attempt.context.AddMetadata(name, value);
  }
  if (token_ != nullptr) token_->AddTo(attempt.context);
  attempt.reader =
      grpc::GenericStub(channel_).PrepareUnaryCall(&attempt.context, method, request, queue);
  attempt.reader->StartCall();
  attempt.reader->Finish(&attempt.reply, &attempt.status, tag);
}

Result<grpc::ByteBuffer> Stub::ResultOf(const UnaryAttempt& attempt) {
  if (!attempt.status.ok()) return ToStatus(attempt.status, attempt.context);
  return attempt.reply;
}

// gRPC releases the slices of a finished call while it makes progress on a completion queue. The
// thread's own queue has no event left, so each AsyncNext only drives gRPC, for up to 1 ms.
void Stub::AwaitReturn(const BorrowedSlices& borrowed) const {
  while (!borrowed.AllReturned()) {
    void* tag = nullptr;
    bool ok = false;
    QueueOfThread().AsyncNext(&tag, &ok, DeadlineAfter(std::chrono::milliseconds(1)));
  }
}

}  // namespace rope::client
