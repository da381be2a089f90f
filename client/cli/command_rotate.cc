// rotate: .npy files through the server.
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "client/cli/commands.h"
#include "client/cli/files.h"
#include "client/cli/npy.h"

namespace rope::client {
namespace {

constexpr int64_t kNpyBytesMax = int64_t{2} << 30;  // more does not fit in a message

// A file to rotate and where its result goes.
struct NpyJob {
  Role role = Role::kQ;
  std::string output_path;
  std::string bytes;
  NpyArray array;
};

Result<DType> DTypeOf(const NpyArray& array, bool is_bf16) {
  if (!is_bf16 && array.descr == "<f4") return DType::kFloat32;
  if (!is_bf16 && array.descr == "<f2") return DType::kFloat16;
  if (is_bf16 && (array.descr == "<u2" || array.descr == "<V2" || array.descr == "|V2")) {
    return DType::kBFloat16;
  }
  return Status(StatusCode::kInvalidArgument,
                absl::StrCat("npy descr: got ", array.descr, ", want ",
                             is_bf16 ? "<u2 (bf16 bits)" : "<f4, <f2, or --dtype=bf16 with <u2"));
}

Result<Operation> OperationOf(const Arguments& arguments) {
  const std::string operation = arguments.Text("operation");
  if (operation.empty() || operation == "rotate") return Operation::kRotate;
  if (operation == "inverse") return Operation::kInverse;
  if (operation == "backward") return Operation::kBackward;
  if (operation == "add_sinusoidal") return Operation::kAddSinusoidal;
  return Status(StatusCode::kInvalidArgument,
                absl::StrCat("--operation: got ", operation,
                             ", want rotate, inverse, backward or add_sinusoidal"));
}

// Everything but the tensors.
Result<RotateRequest> RequestOf(const Arguments& arguments) {
  Result<RopeSpec> spec = RopeSpecOf(arguments);
  if (!spec.ok()) return spec.status();
  const Result<Operation> operation = OperationOf(arguments);
  if (!operation.ok()) return operation.status();
  RotateRequest request;
  request.rope = std::move(*spec);
  request.operation = *operation;
  request.return_attention_factor = arguments.Has("return_attention_factor");
  request.positions.start = arguments.Integer("start");
  request.positions.starts = arguments.Integers("starts");
  request.positions.position_ids = arguments.Integers("positions");
  request.positions.cu_seqlens = arguments.Integers("cu_seqlens");
  request.positions.seq_len = arguments.Integers("seq_len");
  return request;
}

Status CheckFlags(const Arguments& arguments) {
  const auto misuse = [](std::string message) {
    return Status(StatusCode::kInvalidArgument, std::move(message));
  };
  if (!arguments.Has("q") && !arguments.Has("k")) return misuse("--q, --k: got none, want one");
  for (const std::string name : {"q", "k"}) {
    if (arguments.Has(name) != arguments.Has("output_" + name)) {
      return misuse(absl::StrCat("--", name, ", --output_", name, ": got one, want both"));
    }
  }
  if (!arguments.Has("layout")) return misuse("--layout: got nothing, want for example SHD");
  if (arguments.Has("dtype") && arguments.Text("dtype") != "bf16") {
    return misuse(absl::StrCat("--dtype: got ", arguments.Text("dtype"), ", want bf16"));
  }
  return {};
}

// Reads one file and adds its tensor, whose memory the job keeps.
Status AddTensor(const Arguments& arguments, NpyJob& job, RotateRequest& request) {
  const std::string path = arguments.Text(job.role == Role::kQ ? "q" : "k");
  Result<std::string> bytes = ReadFile(path, kNpyBytesMax);
  if (!bytes.ok()) return bytes.status();
  job.bytes = std::move(*bytes);
  Result<NpyArray> array = ParseNpy(job.bytes);
  Result<DType> dtype =
      array.ok() ? DTypeOf(*array, arguments.Has("dtype")) : Result<DType>(array.status());
  if (!dtype.ok()) {
    return Status(StatusCode::kDataLoss, absl::StrCat(path, ": ", dtype.status().message()));
  }
  job.array = std::move(*array);
  request.tensors.push_back({.role = job.role,
                             .layout = arguments.Text("layout"),
                             .dtype = *dtype,
                             .shape = job.array.shape,
                             .data = job.array.data.data()});
  return {};
}

void PrintReply(const RotateReply& reply) {
  absl::PrintF("rotated on %s, attention factor %.9g %s\n", reply.device, reply.attention_factor,
               reply.attention_factor_applied ? "applied" : "not applied");
  absl::PrintF("microseconds: decode %.1f, validate %.1f, queue %.1f, execute %.1f\n",
               reply.microseconds.decode, reply.microseconds.validate, reply.microseconds.queue,
               reply.microseconds.execute);
  for (const std::string& warning : reply.warnings) absl::PrintF("warning: %s\n", warning);
}

}  // namespace

std::vector<Flag> RotateFlags() {
  return WithRopeFlags({
      {"q", FlagKind::kText, "FILE.npy", "Query tensor, float32 or float16."},
      {"k", FlagKind::kText, "FILE.npy", "Key tensor; q, k or both."},
      {"output_q", FlagKind::kText, "FILE.npy", "Where the rotated q goes."},
      {"output_k", FlagKind::kText, "FILE.npy", "Where the rotated k goes."},
      {"layout", FlagKind::kText, "AXES", "A letter for each axis, for example SHD or BSHD."},
      {"dtype", FlagKind::kText, "bf16", "The files hold uint16 with the bits of bfloat16."},
      {"start", FlagKind::kInteger, "N", "Position of each sequence's first token; or"},
      {"starts", FlagKind::kIntegers, "0,7", "one for each sequence; or"},
      {"positions", FlagKind::kIntegers, "0,1,2", "one for each token."},
      {"cu_seqlens", FlagKind::kIntegers, "0,5,9", "Packed sequences (layout T): their bounds."},
      {"seq_len", FlagKind::kIntegers, "N", "Final length, for dynamic and longrope."},
      {"operation", FlagKind::kText, "NAME",
       "rotate (default), inverse, backward or add_sinusoidal."},
      {"return_attention_factor", FlagKind::kSwitch, "", "Print the factor, do not apply it."},
  });
}

int RunRotate(const Arguments& arguments) {
  if (const Status status = CheckFlags(arguments); !status.ok()) return FailOrMisuse(status);
  Result<RotateRequest> request = RequestOf(arguments);
  if (!request.ok()) return FailOrMisuse(request.status());
  std::vector<std::unique_ptr<NpyJob>> jobs;
  for (const Role role : {Role::kQ, Role::kK}) {
    if (!arguments.Has(role == Role::kQ ? "q" : "k")) continue;
    jobs.push_back(std::make_unique<NpyJob>());
    jobs.back()->role = role;
    jobs.back()->output_path = arguments.Text(role == Role::kQ ? "output_q" : "output_k");
    if (const Status status = AddTensor(arguments, *jobs.back(), *request); !status.ok()) {
      return Fail(status);
    }
  }
  const Result<Client> client = ConnectTo(arguments);
  if (!client.ok()) return Fail(client.status());
  const Result<RotateReply> reply = client->Rotate(*request, CallOptionsOf(arguments));
  if (!reply.ok()) return Fail(reply.status());
  for (size_t i = 0; i < jobs.size(); ++i) {
    const RotatedTensor& tensor = reply->tensors[i];
    const absl::string_view data(static_cast<const char*>(tensor.data),
                                 static_cast<size_t>(tensor.bytes));
    const Status status =
        WriteFile(jobs[i]->output_path, NpyHeader(jobs[i]->array.descr, tensor.shape), data);
    if (!status.ok()) return Fail(status);
  }
  PrintReply(*reply);
  return kExitOk;
}

}  // namespace rope::client
