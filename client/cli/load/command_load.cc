// load: how many requests a server answers, and how fast.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "client/cli/commands.h"
#include "client/cli/json_output.h"
#include "client/cli/load/load.h"

namespace rope::client {
namespace {

constexpr int64_t kConcurrencyMax = 4096;
constexpr int64_t kRequestBytesMax = int64_t{2} << 30;  // more does not fit in a message
constexpr std::chrono::seconds kDefaultDuration{10};
constexpr std::chrono::hours kDurationMax{240};

Status Misused(absl::string_view flag, const std::string& got, absl::string_view want) {
  return Status(StatusCode::kInvalidArgument,
                absl::StrCat("--", flag, ": got ", got, ", want ", want));
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
    if (Status status = ReadInteger(arguments, flag, min, kLengthMax, value); !status.ok()) {
      return status;
    }
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
                  "--transport: got cuda, want inline, stream, staged, ring or memfd: device "
                  "memory has no transport yet");
  }
  const auto transport = ChoiceOf<LoadTransport>(arguments, "transport",
                                                 {{"", LoadTransport::kInline},
                                                  {"inline", LoadTransport::kInline},
                                                  {"stream", LoadTransport::kStream},
                                                  {"staged", LoadTransport::kStaged},
                                                  {"ring", LoadTransport::kRing},
                                                  {"memfd", LoadTransport::kMemfd}});
  if (!transport.ok()) return transport.status();
  plan.transport = *transport;
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
  plan.duration = arguments.Duration("duration").value_or(kDefaultDuration);
  if (plan.duration == std::chrono::nanoseconds(0) || plan.duration > kDurationMax) {
    return Misused("duration", arguments.Text("duration"), "more than 0s and at most 240h");
  }
  return {};
}

// Unscaled frequencies unless a flag says otherwise.
Status ReadRope(const Arguments& arguments, LoadPlan& plan) {
  const std::vector<Flag> flags = WithRopeFlags({});
  if (std::none_of(flags.begin(), flags.end(),
                   [&arguments](const Flag& flag) { return arguments.Has(flag.name); })) {
    plan.rope.config = RopeConfig{.head_dim = plan.head_dim};
    plan.rope.pairing = Pairing::kHalf;
    return {};
  }
  Result<RopeSpec> spec = RopeSpecOf(arguments);
  if (!spec.ok()) return spec.status();
  plan.rope = *std::move(spec);
  return {};
}

Result<LoadPlan> PlanOf(const Arguments& arguments) {
  LoadPlan plan;
  plan.call = CallOptionsOf(arguments);
  for (const auto take : {&ReadShape, &ReadTransport, &ReadLength, &ReadRope}) {
    if (Status status = take(arguments, plan); !status.ok()) return status;
  }
  if (Status status = ReadInteger(arguments, "concurrency", 1, kConcurrencyMax, plan.concurrency);
      !status.ok()) {
    return status;
  }
  return plan;
}

// What is printed, either way.
struct Report {
  int64_t answered = 0;
  int64_t failed = 0;
  double requests_per_second = 0;
  double tokens_per_second = 0;
  double gigabytes_per_second = 0;  // each way
  double p50_us = 0;
  double p90_us = 0;
  double p99_us = 0;
  double p999_us = 0;
  double max_us = 0;
};

Report ReportOf(const LoadPlan& plan, const LoadResult& result) {
  Report report;
  report.answered = static_cast<int64_t>(result.latencies_us.size());
  for (const auto& [code, count] : result.errors) report.failed += count;
  const auto answered = static_cast<double>(report.answered);
  report.requests_per_second = answered / result.seconds;
  report.tokens_per_second = report.requests_per_second * static_cast<double>(plan.tokens);
  report.gigabytes_per_second =
      report.requests_per_second * static_cast<double>(plan.RequestBytes()) / 1e9;
  report.p50_us = Percentile(result.latencies_us, 50);
  report.p90_us = Percentile(result.latencies_us, 90);
  report.p99_us = Percentile(result.latencies_us, 99);
  report.p999_us = Percentile(result.latencies_us, 99.9);
  report.max_us = Percentile(result.latencies_us, 100);
  return report;
}

const char* NameOf(DType dtype) {
  return dtype == DType::kFloat32 ? "fp32" : dtype == DType::kFloat16 ? "fp16" : "bf16";
}

void PrintText(const LoadPlan& plan, const LoadResult& result, const Report& report) {
  absl::PrintF("%s, %d in flight, %d tokens of %d + %d heads of %d (%s), on %s\n",
               Name(plan.transport), plan.concurrency, plan.tokens, plan.heads, plan.kv_heads,
               plan.head_dim, NameOf(plan.dtype), result.device);
  absl::PrintF("requests    %d answered, %d failed, in %.3f s\n", report.answered, report.failed,
               result.seconds);
  absl::PrintF("throughput  %.1f requests/s, %.1f tokens/s, %.3f GB/s in and as much out\n",
               report.requests_per_second, report.tokens_per_second, report.gigabytes_per_second);
  absl::PrintF("latency us  p50 %.1f  p90 %.1f  p99 %.1f  p99.9 %.1f  max %.1f\n", report.p50_us,
               report.p90_us, report.p99_us, report.p999_us, report.max_us);
  for (const auto& [code, count] : result.errors) absl::PrintF("error       %s %d\n", code, count);
  if (!result.first_error.empty()) absl::PrintF("first error %s\n", result.first_error);
}

void PrintJson(const LoadPlan& plan, const LoadResult& result, const Report& report) {
  using Json = nlohmann::ordered_json;
  const Json json = {{"transport", Name(plan.transport)},
                     {"concurrency", plan.concurrency},
                     {"tokens", plan.tokens},
                     {"heads", plan.heads},
                     {"kv_heads", plan.kv_heads},
                     {"head_dim", plan.head_dim},
                     {"dtype", NameOf(plan.dtype)},
                     {"device", result.device},
                     {"seconds", result.seconds},
                     {"answered", report.answered},
                     {"failed", report.failed},
                     {"errors", Json(result.errors)},
                     {"first_error", result.first_error},
                     {"requests_per_second", report.requests_per_second},
                     {"tokens_per_second", report.tokens_per_second},
                     {"gigabytes_per_second_in", report.gigabytes_per_second},
                     {"gigabytes_per_second_out", report.gigabytes_per_second},
                     {"latency_us",
                      {{"p50", report.p50_us},
                       {"p90", report.p90_us},
                       {"p99", report.p99_us},
                       {"p99.9", report.p999_us},
                       {"max", report.max_us}}}};
  absl::PrintF("%s", JsonText(json));
}

}  // namespace

std::vector<Flag> LoadFlags() {
  return WithRopeFlags({
      {"tokens", FlagKind::kInteger, "N", "Tokens of a request. Default 1."},
      {"heads", FlagKind::kInteger, "N", "Heads of q. Default 32."},
      {"kv_heads", FlagKind::kInteger, "N", "Heads of k, 0: no k. Default 8."},
      {"head_dim", FlagKind::kInteger, "N", "Channels of a head. Default 128."},
      {"dtype", FlagKind::kText, "DTYPE", "fp32, fp16 or bf16. Default bf16."},
      {"transport", FlagKind::kText, "NAME",
       "inline (default), staged, ring, memfd: a thread and a connection for each"},
      {"concurrency", FlagKind::kInteger, "N",
       "of N in flight, in place with the last three; stream: one for all."},
      {"duration", FlagKind::kDuration, "DURATION", "How long. Default 10s; or"},
      {"requests", FlagKind::kInteger, "N", "so many requests."},
      kJsonFlag,
  });
}

int RunLoadCommand(const Arguments& arguments) {
  const Result<LoadPlan> plan = PlanOf(arguments);
  if (!plan.ok()) return FailOrMisuse(plan.status());
  const Result<LoadResult> result = RunLoad(
      *plan, [&arguments](const ConnectOptions& options) { return ConnectTo(arguments, options); });
  if (!result.ok()) return Fail(result.status());
  const Report report = ReportOf(*plan, *result);
  const auto print = arguments.Has("json") ? &PrintJson : &PrintText;
  print(*plan, *result, report);
  return report.failed == 0 ? kExitOk : kExitFailed;
}

}  // namespace rope::client
