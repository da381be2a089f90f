// verify: golden files against the server, in every dtype.
#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "client/cli/commands.h"
#include "client/cli/golden.h"
#include "kernels/status_macros.h"

namespace rope::client {
namespace {

constexpr int64_t kGoldenBytesMax = int64_t{1} << 30;

struct Verdict {
  // Largest error / tolerance in each dtype, as far as the file got; unset: the call failed.
  std::vector<std::pair<absl::string_view, std::optional<double>>> ratios;
  std::string why;  // empty: within tolerance
};

// Rotates both tensors in one call and gives the larger deviation.
Result<Deviation> Measure(const Client& client, const CallOptions& call, const GoldenFile& golden,
                          DType dtype) {
  RotateRequest request;
  request.rope = {.config_json = golden.config_json,
                  .layer_type = golden.layer_type,
                  .pairing = golden.pairing};
  request.positions = {.position_ids = golden.positions,
                       .position_ids_shape = golden.positions_shape,
                       .seq_lens = {golden.seq_len}};
  std::vector<std::vector<std::byte>> inputs;
  for (const GoldenTensor& tensor : golden.tensors) {
    inputs.push_back(Store(tensor.input, dtype));
    request.tensors.push_back({.role = tensor.role,
                               .layout = "THD",
                               .dtype = dtype,
                               .shape = {golden.tokens, tensor.heads, golden.head_dim},
                               .data = inputs.back().data()});
  }
  ROPE_ASSIGN_OR_RETURN(const RotateReply reply, client.Rotate(request, call));
  Deviation worst;
  for (size_t i = 0; i < golden.tensors.size(); ++i) {
    Deviation deviation = Compare(golden, golden.tensors[i], dtype, reply.tensors[i].data);
    if (deviation.ratio > worst.ratio) worst = std::move(deviation);
  }
  return worst;
}

Verdict VerifyFile(const Client& client, const CallOptions& call, const std::string& path) {
  Verdict verdict;
  const auto note = [&verdict](std::string why) {
    if (verdict.why.empty()) verdict.why = std::move(why);
  };
  const Result<std::string> text = ReadFile(path, kGoldenBytesMax);
  const Result<GoldenFile> golden =
      text.ok() ? ParseGolden(*text) : Result<GoldenFile>(text.status());
  if (!golden.ok()) {
    note(golden.status().message());
    return verdict;
  }
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const Result<Deviation> deviation = Measure(client, call, *golden, dtype);
    if (!deviation.ok()) {
      verdict.ratios.emplace_back(Name(dtype), std::nullopt);
      note(absl::StrCat(Name(dtype), ": ", deviation.status().ToString()));
      continue;
    }
    verdict.ratios.emplace_back(Name(dtype), deviation->ratio);
    if (!(deviation->ratio <= 1)) note(absl::StrCat(Name(dtype), ": ", deviation->where));
  }
  return verdict;
}

// "folder/name.json" is "name".
std::string NameOf(const std::string& path) {
  return std::string(absl::StripSuffix(path.substr(path.rfind('/') + 1), ".json"));
}

// "fp32 0.6345  fp16 0.9981  bf16 0.9993  ok"
void PrintLine(const std::string& name, size_t width, const Verdict& verdict) {
  std::string ratios;
  for (const auto& [dtype, ratio] : verdict.ratios) {
    absl::StrAppend(&ratios, dtype,
                    ratio.has_value() ? absl::StrFormat(" %-7.4f ", *ratio) : " -       ");
  }
  const std::string result = verdict.why.empty() ? "ok" : absl::StrCat("FAIL ", verdict.why);
  absl::PrintF("%-*s  %s %s\n", static_cast<int>(width), name, ratios, result);
  std::fflush(stdout);
}

// A ratio that is infinite or unknown is null.
Json JsonOf(const std::string& name, const Verdict& verdict) {
  Json json = {{"name", name}, {"ok", verdict.why.empty()}, {"why", verdict.why}};
  for (const auto& [dtype, ratio] : verdict.ratios) {
    json[std::string(dtype)] = ratio.has_value() ? Json(*ratio) : Json();
  }
  return json;
}

Result<int> RunVerify(const Arguments& arguments) {
  const std::vector<std::string>& paths = arguments.positional();
  if (paths.empty()) return Misused("verify: got no file, want FILE.json...");
  ROPE_ASSIGN_OR_RETURN(const Client client, ConnectToAny(arguments));
  const bool show_progress = paths.size() > 1 && isatty(STDERR_FILENO) != 0;
  size_t width = 0;
  for (const std::string& path : paths) width = std::max(width, NameOf(path).size());
  size_t failed = 0;
  Json list = Json::array();
  for (size_t i = 0; i < paths.size(); ++i) {
    if (show_progress) absl::FPrintF(stderr, "\r%d/%d", i + 1, paths.size());
    const Verdict verdict = VerifyFile(client, CallOptionsOf(arguments), paths[i]);
    if (show_progress) absl::FPrintF(stderr, "\r\x1b[K");
    if (arguments.Has("json")) {
      list.push_back(JsonOf(NameOf(paths[i]), verdict));
    } else {
      PrintLine(NameOf(paths[i]), width, verdict);
    }
    if (!verdict.why.empty()) ++failed;
  }
  if (arguments.Has("json")) absl::PrintF("%s", JsonText(list));
  if (paths.size() > 1) {
    absl::FPrintF(stderr, "%d files, %d within tolerance, %d failed\n", paths.size(),
                  paths.size() - failed, failed);
  }
  return failed == 0 ? kExitOk : kExitFailed;
}

}  // namespace

Command VerifyCommand() {
  return {"verify",    "FILE.json...", "Checks golden files against the engine.",
          {kJsonFlag}, &RunVerify,     Command::Asks::kAny};
}

}  // namespace rope::client
