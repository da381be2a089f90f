#include "client/cli/load/load.h"

#include <atomic>
#include <cmath>
#include <cstddef>
#include <memory>
#include <thread>

#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "kernels/status_macros.h"

namespace rope::client {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kPositions = 128 * 1024;  // sequences restart at this position
constexpr int64_t kPositionsApart = 1000;   // between the first positions of sequences

// One request in flight: its connection and memory, the position of its sequence, its results so
// far. `plan` outlives it.
class Sequence {
 public:
  Sequence(const LoadPlan& plan, Client client, int64_t index)
      : plan_(plan), client_(std::move(client)), position_(index * kPositionsApart % kPositions) {
    request_.rope = plan.rope;
  }

  // Allocates the tensors; if the plan shares memory, as arena slots that are rotated in place.
  Status Allocate() {
    ROPE_RETURN_IF_ERROR(Add(Role::kQ, plan_.heads));
    return plan_.kv_heads == 0 ? Status() : Add(Role::kK, plan_.kv_heads);
  }

  // Sends the next request and advances the position.
  Result<RotateReply> Rotate() {
    request_.positions.start = position_;
    position_ = (position_ + plan_.tokens) % kPositions;
    return client_.Rotate(request_, plan_.call);
  }
  // Rotate, whose outcome counts.
  void Measure() {
    const Clock::time_point begin = Clock::now();
    const Status status = Rotate().status();
    if (status.ok()) {
      const std::chrono::duration<float, std::micro> latency = Clock::now() - begin;
      return result_.latencies_us.push_back(latency.count());
    }
    ++result_.errors[Name(status.code())];
    if (result_.first_error.empty()) result_.first_error = status.ToString();
  }
  const LoadResult& result() const { return result_; }

 private:
  Status Add(Role role, int64_t heads) {
    const int64_t elements = plan_.tokens * heads * plan_.head_dim;
    const auto words = static_cast<size_t>(elements * ElementBytes(plan_.dtype) / 2);
    uint16_t* data = nullptr;
    uint16_t* output = nullptr;
    if (plan_.SharesMemory()) {
      const auto bytes = static_cast<int64_t>(words * sizeof(uint16_t));
      ROPE_ASSIGN_OR_RETURN(Slot slot, client_.arena().Allocate(bytes));
      slots_.push_back(std::move(slot));
      data = output = static_cast<uint16_t*>(slots_.back().data());
      // In place, the factor would be applied again with every call.
      request_.skip_attention_factor = true;
    } else {
      memory_.emplace_back(words);
      data = memory_.back().data();
      memory_.emplace_back(words);
      output = memory_.back().data();
    }
    std::fill_n(data, words, uint16_t{0x3f80});  // a value near 1 in each type
    request_.tensors.push_back({.role = role,
                                .layout = "SHD",
                                .dtype = plan_.dtype,
                                .shape = {plan_.tokens, heads, plan_.head_dim},
                                .data = data,
                                .output = output});
    return {};
  }

  const LoadPlan& plan_;
  const Client client_;
  int64_t position_;
  std::vector<std::vector<uint16_t>> memory_;
  std::vector<Slot> slots_;
  RotateRequest request_;
  LoadResult result_;
};

using Sequences = std::vector<std::unique_ptr<Sequence>>;

void RunSequences(const LoadPlan& plan, const Sequences& sequences) {
  std::atomic<int64_t> left = plan.requests.value_or(0);
  const Clock::time_point end = Clock::now() + plan.duration;
  const auto may_begin = [&plan, &left, end] {
    return plan.requests.has_value() ? left.fetch_sub(1, std::memory_order_relaxed) > 0
                                     : Clock::now() < end;
  };
  std::vector<std::thread> threads;
  for (const auto& sequence : sequences) {
    threads.emplace_back([&may_begin, &sequence] {
      while (may_begin()) sequence->Measure();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

LoadResult Sum(const Sequences& sequences) {
  LoadResult sum;
  for (const auto& sequence : sequences) {
    const std::vector<float>& latencies = sequence->result().latencies_us;
    sum.latencies_us.insert(sum.latencies_us.end(), latencies.begin(), latencies.end());
    for (const auto& [code, count] : sequence->result().errors) sum.errors[code] += count;
    if (sum.first_error.empty()) sum.first_error = sequence->result().first_error;
  }
  std::sort(sum.latencies_us.begin(), sum.latencies_us.end());
  return sum;
}

// What --transport may say, in the order of LoadTransport.
const std::vector<std::pair<absl::string_view, LoadTransport>> kTransports = {
    {"inline", LoadTransport::kInline},
    {"staged", LoadTransport::kStaged},
    {"ring", LoadTransport::kRing},
    {"memfd", LoadTransport::kMemfd}};

ConnectOptions OptionsOf(const LoadPlan& plan) {
  static const std::vector<Transport> kAllowed[] = {{Transport::kInline},
                                                    {Transport::kRing, Transport::kMemfd},
                                                    {Transport::kRing},
                                                    {Transport::kMemfd}};
  constexpr int64_t kAlignmentMax = 2 * 4096;  // most that the alignment of q and k adds
  ConnectOptions options;
  options.transports = kAllowed[static_cast<size_t>(plan.transport)];
  options.staged_bytes = plan.RequestBytes() + kAlignmentMax;
  if (plan.SharesMemory()) options.arena_bytes = options.staged_bytes;
  return options;
}

constexpr int64_t kConcurrencyMax = 4096;
constexpr int64_t kRequestBytesMax = int64_t{2} << 30;  // more does not fit in a message
constexpr std::chrono::hours kDurationMax{240};

Status Misused(absl::string_view flag, const std::string& got, absl::string_view want) {
  return client::Misused(absl::StrCat("--", flag, ": got ", got, ", want ", want));
}

// Sets `value` to what the flag says, if it does.
Status ReadInteger(const Arguments& arguments, absl::string_view flag, int64_t min, int64_t max,
                   int64_t& value) {
  value = arguments.Integer(flag).value_or(value);
  if (value >= min && value <= max) return {};
  return Misused(flag, absl::StrCat(value), absl::StrCat(min, " to ", max));
}

Status ReadShape(const Arguments& arguments, LoadPlan& plan) {
  const struct {
    absl::string_view flag;
    int64_t min;
    int64_t& value;
  } lengths[] = {{"tokens", 1, plan.tokens},
                 {"heads", 1, plan.heads},
                 {"kv_heads", 0, plan.kv_heads},
                 {"head_dim", 1, plan.head_dim}};
  for (const auto& [flag, min, value] : lengths) {
    // Bounded so that their product is.
    constexpr int64_t kLengthMax = int64_t{1} << 22;
    ROPE_RETURN_IF_ERROR(ReadInteger(arguments, flag, min, kLengthMax, value));
  }
  const std::string dtype = arguments.Text("dtype");
  if (dtype == "fp32") {
    plan.dtype = DType::kFloat32;
  } else if (dtype == "fp16") {
    plan.dtype = DType::kFloat16;
  } else if (!dtype.empty() && dtype != "bf16") {
    return Misused("dtype", dtype, "fp32, fp16 or bf16");
  }
  int64_t bytes = plan.tokens * ElementBytes(plan.dtype);  // below 2^25
  if (__builtin_mul_overflow(bytes, plan.heads + plan.kv_heads, &bytes) ||
      __builtin_mul_overflow(bytes, plan.head_dim, &bytes) || bytes > kRequestBytesMax) {
    return Misused("tokens", absl::StrCat("a request of more than ", kRequestBytesMax, " bytes"),
                   "a smaller one");
  }
  return {};
}

Status ReadTransport(const Arguments& arguments, LoadPlan& plan) {
  if (arguments.Text("transport") == "cuda") {
    return Status(StatusCode::kUnimplemented,
                  "--transport: got cuda, want inline, staged, ring or memfd: device memory has "
                  "no transport yet");
  }
  ROPE_ASSIGN_OR_RETURN(plan.transport, ChoiceOf(arguments, "transport", kTransports));
  return {};
}

Status ReadLength(const Arguments& arguments, LoadPlan& plan) {
  if (arguments.Has("requests") && arguments.Has("duration")) {
    return Misused("requests", "it and --duration", "one of them");
  }
  if (arguments.Has("requests")) {
    plan.requests = 0;
    return ReadInteger(arguments, "requests", 1, int64_t{1} << 53, *plan.requests);
  }
  plan.duration = arguments.Duration("duration").value_or(plan.duration);
  if (plan.duration == std::chrono::nanoseconds(0) || plan.duration > kDurationMax) {
    return Misused("duration", arguments.Text("duration"), "more than 0s and at most 240h");
  }
  return {};
}

// Unscaled frequencies unless a flag says otherwise.
Status ReadRope(const Arguments& arguments, LoadPlan& plan) {
  if (std::ranges::none_of(WithRopeFlags({}),
                           [&](const Flag& flag) { return arguments.Has(flag.name); })) {
    plan.rope.config = RopeConfig{.head_dim = plan.head_dim};
    plan.rope.pairing = Pairing::kHalf;
    return {};
  }
  ROPE_ASSIGN_OR_RETURN(plan.rope, RopeSpecOf(arguments));
  return {};
}

Result<LoadPlan> PlanOf(const Arguments& arguments) {
  LoadPlan plan;
  plan.call.timeout = CallOptionsOf(arguments).timeout;
  for (const auto take : {&ReadShape, &ReadTransport, &ReadLength, &ReadRope}) {
    ROPE_RETURN_IF_ERROR(take(arguments, plan));
  }
  ROPE_RETURN_IF_ERROR(ReadInteger(arguments, "concurrency", 1, kConcurrencyMax, plan.concurrency));
  return plan;
}

// What is printed, either way.
Json ReportOf(const LoadPlan& plan, const LoadResult& result) {
  int64_t failed = 0;
  for (const auto& [code, count] : result.errors) failed += count;
  const auto answered = static_cast<double>(result.latencies_us.size());
  const double requests_per_second = answered / result.seconds;
  const double gigabytes_per_second =
      requests_per_second * static_cast<double>(plan.RequestBytes()) / 1e9;
  const auto latency = [&](double percent) { return Percentile(result.latencies_us, percent); };
  return {{"transport", kTransports[static_cast<size_t>(plan.transport)].first},
          {"concurrency", plan.concurrency},
          {"tokens", plan.tokens},
          {"heads", plan.heads},
          {"kv_heads", plan.kv_heads},
          {"head_dim", plan.head_dim},
          {"dtype", Name(plan.dtype)},
          {"device", result.device},
          {"seconds", result.seconds},
          {"answered", result.latencies_us.size()},
          {"failed", failed},
          {"errors", Json(result.errors)},
          {"first_error", result.first_error},
          {"requests_per_second", requests_per_second},
          {"tokens_per_second", requests_per_second * static_cast<double>(plan.tokens)},
          {"gigabytes_per_second_in", gigabytes_per_second},
          {"gigabytes_per_second_out", gigabytes_per_second},
          {"latency_us",
           {{"p50", latency(50)},
            {"p90", latency(90)},
            {"p99", latency(99)},
            {"p99.9", latency(99.9)},
            {"max", latency(100)}}}};
}

void PrintText(const LoadPlan& plan, const LoadResult& result, const Json& report) {
  const auto number = [&report](const char* name) { return report.at(name).get<double>(); };
  const auto latency = [&](double percent) { return Percentile(result.latencies_us, percent); };
  absl::PrintF("%s, %d in flight, %d tokens of %d + %d heads of %d (%s), on %s\n",
               report.at("transport").get<std::string>(), plan.concurrency, plan.tokens, plan.heads,
               plan.kv_heads, plan.head_dim, Name(plan.dtype), result.device);
  absl::PrintF("requests    %d answered, %d failed, in %.3f s\n", result.latencies_us.size(),
               report.at("failed").get<int64_t>(), result.seconds);
  absl::PrintF("throughput  %.1f requests/s, %.1f tokens/s, %.3f GB/s in and as much out\n",
               number("requests_per_second"), number("tokens_per_second"),
               number("gigabytes_per_second_in"));
  absl::PrintF("latency us  p50 %.1f  p90 %.1f  p99 %.1f  p99.9 %.1f  max %.1f\n", latency(50),
               latency(90), latency(99), latency(99.9), latency(100));
  for (const auto& [code, count] : result.errors) absl::PrintF("error       %s %d\n", code, count);
  if (!result.first_error.empty()) absl::PrintF("first error %s\n", result.first_error);
}

Result<int> RunLoadCommand(const Arguments& arguments) {
  ROPE_ASSIGN_OR_RETURN(const LoadPlan plan, PlanOf(arguments));
  ROPE_ASSIGN_OR_RETURN(const LoadResult result,
                        RunLoad(plan, [&arguments](const ConnectOptions& options) {
                          return ConnectTo(arguments, options);
                        }));
  const Json report = ReportOf(plan, result);
  if (arguments.Has("json")) {
    absl::PrintF("%s", JsonText(report));
  } else {
    PrintText(plan, result, report);
  }
  return result.errors.empty() ? kExitOk : kExitFailed;
}

}  // namespace

double Percentile(const std::vector<float>& sorted, double percent) {
  if (sorted.empty()) return 0;
  const double rank = std::ceil(static_cast<double>(sorted.size()) * percent / 100);
  return sorted[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

Result<LoadResult> RunLoad(const LoadPlan& plan,
                           const std::function<Result<Client>(const ConnectOptions&)>& connect) {
  Sequences sequences;
  for (int64_t i = 0; i < plan.concurrency; ++i) {
    ROPE_ASSIGN_OR_RETURN(Client client, connect(OptionsOf(plan)));
    sequences.push_back(std::make_unique<Sequence>(plan, std::move(client), i));
  }
  for (const auto& sequence : sequences) ROPE_RETURN_IF_ERROR(sequence->Allocate());
  ROPE_ASSIGN_OR_RETURN(const RotateReply first, sequences.front()->Rotate());

  const auto begin = Clock::now();
  RunSequences(plan, sequences);
  LoadResult result = Sum(sequences);
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  result.device = first.device;
  return result;
}

Command LoadCommand() {
  return {
      "load", "", "Sends one request over and over and measures.",
      WithRopeFlags({
          {"tokens", FlagKind::kInteger, "N", "Tokens of a request. Default 1."},
          {"heads", FlagKind::kInteger, "N", "Heads of q. Default 32."},
          {"kv_heads", FlagKind::kInteger, "N", "Heads of k, 0: no k. Default 8."},
          {"head_dim", FlagKind::kInteger, "N", "Channels of a head. Default 128."},
          {"dtype", FlagKind::kText, "DTYPE", "fp32, fp16 or bf16. Default bf16."},
          {"transport", FlagKind::kText, "NAME",
           "inline (default), staged, ring, memfd: a thread and a connection for each"},
          {"concurrency", FlagKind::kInteger, "N", "of N in flight, in place with the last two."},
          {"duration", FlagKind::kDuration, "DURATION", "How long. Default 10s; or"},
          {"requests", FlagKind::kInteger, "N", "so many requests."},
          kJsonFlag,
      }),
      &RunLoadCommand};
}

}  // namespace rope::client
