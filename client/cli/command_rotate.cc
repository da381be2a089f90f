// rotate, reposition: .npy files through the server.
#include <deque>

#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/npy.h"
#include "kernels/status_macros.h"

namespace rope::client {
namespace {

constexpr int64_t kNpyBytesMax = int64_t{2} << 30;  // more does not fit in a message
constexpr double kNormEps = 1e-6;

// A request, and the bytes of the files that its memory is.
struct Job {
  RotateRequest request;
  std::deque<std::string> files;
};

Result<DType> DTypeOf(const NpyArray& array, bool is_bf16) {
  if (!is_bf16 && array.descr == "<f4") return DType::kFloat32;
  if (!is_bf16 && array.descr == "<f2") return DType::kFloat16;
  if (is_bf16 && (array.descr == "<u2" || array.descr == "<V2" || array.descr == "|V2")) {
    return DType::kBFloat16;
  }
  return Misused(absl::StrCat("npy descr: got ", array.descr, ", want ",
                              is_bf16 ? "<u2 (bf16 bits)" : "<f4, <f2, or --dtype=bf16 with <u2"));
}

Positions PositionsOf(const Arguments& arguments, const std::string& prefix) {
  return {.start = arguments.Integer(prefix + "start"),
          .starts = arguments.Integers(prefix + "starts"),
          .position_ids = arguments.Integers(prefix + "positions"),
          .cu_seqlens = arguments.Integers("cu_seqlens"),
          .seq_lens = arguments.Integers(prefix + "seq_lens")};
}

// Everything but what is in files.
Result<RotateRequest> RequestOf(const Arguments& arguments) {
  RotateRequest request;
  if (arguments.Has("cos")) {
    for (const Flag& flag : WithRopeFlags({})) {
      if (flag.name == "pairing" || !arguments.Has(flag.name)) continue;
      return Misused(absl::StrCat("--cos: got it and --", flag.name, ", want one of them"));
    }
    ROPE_ASSIGN_OR_RETURN(request.rope.pairing, PairingOf(arguments));
  } else {
    ROPE_ASSIGN_OR_RETURN(request.rope, RopeSpecOf(arguments));
    ROPE_ASSIGN_OR_RETURN(request.rope.first_layer, LayerOf(arguments, "first_layer"));
  }
  ROPE_ASSIGN_OR_RETURN(request.operation,
                        ChoiceOf<Operation>(arguments, "operation",
                                            {{"rotate", Operation::kRotate},
                                             {"inverse", Operation::kInverse},
                                             {"backward", Operation::kBackward},
                                             {"add_sinusoidal", Operation::kAddSinusoidal}}));
  ROPE_ASSIGN_OR_RETURN(request.output_dtype,
                        DTypeOf(arguments, "output_dtype",
                                {DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                                 DType::kFloat8E4M3, DType::kFloat8E5M2}));
  request.skip_attention_factor = arguments.Has("skip_attention_factor");
  request.positions = PositionsOf(arguments, "");
  return request;
}

Status CheckFlags(const Arguments& arguments) {
  if (!arguments.Has("q") && !arguments.Has("k")) return Misused("--q, --k: got none, want one");
  for (const std::string name : {"q", "k"}) {
    if (arguments.Has(name) != arguments.Has("output_" + name)) {
      return Misused(absl::StrCat("--", name, ", --output_", name, ": got one, want both"));
    }
    if (arguments.Has("norm_" + name) && !arguments.Has(name)) {
      return Misused(absl::StrCat("--norm_", name, ": got it without --", name, ", want both"));
    }
  }
  if (arguments.Has("cos") != arguments.Has("sin")) {
    return Misused("--cos, --sin: got one, want both");
  }
  if (arguments.Has("scale_q") && !arguments.Has("q")) {
    return Misused("--scale_q: got it without --q, want both");
  }
  if (!arguments.Has("layout")) return Misused("--layout: got nothing, want for example SHD");
  if (arguments.Has("dtype") && arguments.Text("dtype") != "bf16") {
    return Misused(absl::StrCat("--dtype: got ", arguments.Text("dtype"), ", want bf16"));
  }
  return {};
}

Status InFile(const std::string& path, const Status& status) {
  return Status(StatusCode::kDataLoss, absl::StrCat(path, ": ", status.message()));
}

// The array in the file that flag `name` gives, whose memory the job keeps. One beside the tensors
// is float64, float32 or float16.
Result<ArrayView> ReadArray(const Arguments& arguments, absl::string_view name, bool is_tensor,
                            Job& job) {
  const std::string path = arguments.Text(name);
  ROPE_ASSIGN_OR_RETURN(std::string bytes, ReadFile(path, kNpyBytesMax));
  const Result<NpyArray> array = ParseNpy(job.files.emplace_back(std::move(bytes)));
  if (!array.ok()) return InFile(path, array.status());
  const Result<DType> dtype = !is_tensor && array->descr == "<f8"
                                  ? Result<DType>(DType::kFloat64)
                                  : DTypeOf(*array, is_tensor && arguments.Has("dtype"));
  if (!dtype.ok()) return InFile(path, dtype.status());
  return ArrayView{.dtype = *dtype, .shape = array->shape, .data = array->data.data()};
}

Status AddTensor(const Arguments& arguments, Role role, Job& job) {
  const std::string name = role == Role::kQ ? "q" : "k";
  ROPE_ASSIGN_OR_RETURN(const ArrayView array, ReadArray(arguments, name, /*is_tensor=*/true, job));
  TensorView tensor{.role = role,
                    .layout = arguments.Text("layout"),
                    .dtype = array.dtype,
                    .shape = array.shape,
                    .data = array.data,
                    .output_layout = arguments.Text("output_layout"),
                    .rotary_offset = arguments.Integer("rotary_offset")};
  if (arguments.Has("norm_" + name)) {
    HeadNorm& norm = tensor.norm.emplace();
    norm.eps = arguments.Number("norm_eps").value_or(kNormEps);
    ROPE_ASSIGN_OR_RETURN(norm.weight,
                          ReadArray(arguments, "norm_" + name, /*is_tensor=*/false, job));
  }
  if (role == Role::kQ) tensor.scale = arguments.Number("scale_q");
  job.request.tensors.push_back(std::move(tensor));
  return {};
}

// A call of `prepared` with the values of `whole`, which it was prepared from.
RotateRequest CallOf(const PreparedRotation& prepared, const RotateRequest& whole) {
  RotateRequest call{.prepared = prepared, .positions = whole.positions};
  if (whole.reposition.has_value()) call.reposition = Reposition{.from = whole.reposition->from};
  for (const TensorView& tensor : whole.tensors) call.tensors.push_back({.data = tensor.data});
  return call;
}

void PrintReply(const RotateReply& reply, const std::string& prepared_id) {
  if (!prepared_id.empty()) absl::PrintF("prepared as %s\n", prepared_id);
  absl::PrintF("rotated on %s, attention factor %.9g %s\n", reply.device, reply.attention_factor,
               reply.attention_factor_applied ? "applied" : "not applied");
  absl::PrintF(
      "stage times in microseconds: decode %.1f, validate %.1f, queue %.1f, execute %.1f\n",
      reply.stage_times.decode_us, reply.stage_times.validate_us, reply.stage_times.queue_us,
      reply.stage_times.execute_us);
  for (const std::string& warning : reply.warnings) absl::PrintF("warning: %s\n", warning);
}

void PrintReplyJson(const RotateReply& reply, const std::string& prepared_id) {
  nlohmann::ordered_json json = {{"device", reply.device},
                                 {"attention_factor", reply.attention_factor},
                                 {"attention_factor_applied", reply.attention_factor_applied},
                                 {"stage_times",
                                  {{"decode_us", reply.stage_times.decode_us},
                                   {"validate_us", reply.stage_times.validate_us},
                                   {"queue_us", reply.stage_times.queue_us},
                                   {"execute_us", reply.stage_times.execute_us}}},
                                 {"warnings", reply.warnings}};
  if (!prepared_id.empty()) json["prepared_id"] = prepared_id;
  absl::PrintF("%s", JsonText(json));
}

Result<int> Run(const Arguments& arguments, RotateRequest request) {
  Job job{.request = std::move(request), .files = {}};
  for (const Role role : {Role::kQ, Role::kK}) {
    if (!arguments.Has(role == Role::kQ ? "q" : "k")) continue;
    ROPE_RETURN_IF_ERROR(AddTensor(arguments, role, job));
  }
  if (arguments.Has("cos")) {
    Rows& rows = job.request.rows.emplace();
    ROPE_ASSIGN_OR_RETURN(rows.cos, ReadArray(arguments, "cos", /*is_tensor=*/false, job));
    ROPE_ASSIGN_OR_RETURN(rows.sin, ReadArray(arguments, "sin", /*is_tensor=*/false, job));
  }
  ROPE_ASSIGN_OR_RETURN(const Client client, ConnectToAny(arguments));
  if (arguments.Has("by") && !arguments.Has("seq_lens")) {
    DescribeRequest question{.rope = job.request.rope};
    question.rope.first_layer.reset();
    const std::vector<int64_t>& shape = job.request.tensors.front().shape;
    if (!shape.empty()) question.head_dim = shape.back();
    if (const auto reply = client.Describe(question); reply.ok() && reply->depends_on_seq_len) {
      return Misused("--seq_lens: got none, want the lengths with --by: this config follows them");
    }
  }
  std::string prepared_id;
  if (arguments.Has("prepare")) {
    ROPE_ASSIGN_OR_RETURN(const PreparedRotation prepared,
                          client.Prepare(job.request, {}, CallOptionsOf(arguments)));
    prepared_id = prepared.id();
    job.request = CallOf(prepared, job.request);
  }
  ROPE_ASSIGN_OR_RETURN(const RotateReply reply,
                        client.Rotate(job.request, CallOptionsOf(arguments)));
  for (const RotatedTensor& tensor : reply.tensors) {
    const absl::string_view data(static_cast<const char*>(tensor.data),
                                 static_cast<size_t>(tensor.bytes));
    const std::string path = arguments.Text(tensor.role == Role::kQ ? "output_q" : "output_k");
    ROPE_RETURN_IF_ERROR(WriteNpy(path, tensor.dtype, tensor.shape, data));
  }
  const auto print = arguments.Has("json") ? &PrintReplyJson : &PrintReply;
  print(reply, prepared_id);
  return kExitOk;
}

Result<int> RunRotate(const Arguments& arguments) {
  ROPE_RETURN_IF_ERROR(CheckFlags(arguments));
  ROPE_ASSIGN_OR_RETURN(RotateRequest request, RequestOf(arguments));
  return Run(arguments, std::move(request));
}

Result<int> RunReposition(const Arguments& arguments) {
  ROPE_RETURN_IF_ERROR(CheckFlags(arguments));
  const bool has_by = arguments.Has("by");
  if (!has_by && !arguments.Has("from_start") && !arguments.Has("from_starts") &&
      !arguments.Has("from_positions")) {
    return Misused("--by, --from_start, --from_starts, --from_positions: got none, want one");
  }
  ROPE_ASSIGN_OR_RETURN(RotateRequest request, RequestOf(arguments));
  request.operation = Operation::kReposition;
  Positions& from = request.reposition.emplace().from;
  from = PositionsOf(arguments, "from_");
  if (has_by) {
    if (request.positions.start.has_value() || from.start.has_value() || HasFromRope(arguments)) {
      return Misused("--by: got it and a start or another embedding, want it alone");
    }
    const int64_t by = std::max(*arguments.Integer("by"), -INT64_MAX);
    request.positions.start = std::max<int64_t>(by, 0);
    from.start = std::max<int64_t>(-by, 0);
    if (from.seq_lens.empty()) from.seq_lens = request.positions.seq_lens;
  }
  if (HasFromRope(arguments)) {
    ROPE_ASSIGN_OR_RETURN(request.reposition->from_rope, RopeSpecOf(arguments, "from_"));
  }
  return Run(arguments, std::move(request));
}

// The flags of both commands.
std::vector<Flag> WithTensorFlags(const std::vector<Flag>& flags) {
  const std::vector<Flag> first = {
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
      {"seq_lens", FlagKind::kIntegers, "N", "Final length, for dynamic and longrope."},
  };
  const std::vector<Flag> last = {
      {"output_dtype", FlagKind::kText, "DTYPE",
       "fp32, fp16, bf16 (as uint16), fp8_e4m3 or fp8_e5m2 (as uint8)."},
      {"output_layout", FlagKind::kText, "AXES", "The axes of --layout in another order."},
      {"rotary_offset", FlagKind::kInteger, "N",
       "First rotated channel; D may then exceed head_dim."},
      {"first_layer", FlagKind::kInteger, "N", "Layer of index 0 of the axis L, if layers differ."},
      {"skip_attention_factor", FlagKind::kSwitch, "", "Print the factor, do not apply it."},
      {"prepare", FlagKind::kSwitch, "", "Prepare first, then call by the id, which is printed."},
      kJsonFlag,
  };
  return WithRopeFlags(Joined(Joined(first, flags), last));
}

}  // namespace

Command RotateCommand() {
  return {
      "rotate",
      "",
      "Rotates tensors in .npy files.",
      WithTensorFlags({
          {"operation", FlagKind::kText, "NAME",
           "rotate (default), inverse, backward or add_sinusoidal."},
          {"cos", FlagKind::kText, "FILE.npy",
           "Rows in place of a model: a row for each token, or"},
          {"sin", FlagKind::kText, "FILE.npy", "beside positions one for each position."},
          {"norm_q", FlagKind::kText, "FILE.npy",
           "Weights of an RMS norm of q before the rotation."},
          {"norm_k", FlagKind::kText, "FILE.npy", "The same of k."},
          {"norm_eps", FlagKind::kNumber, "EPS", "Of both. Default 1e-6."},
          {"scale_q", FlagKind::kNumber, "FACTOR", "Multiplies q, for example the softmax scale."},
      }),
      &RunRotate,
      Command::Asks::kAny};
}

Command RepositionCommand() {
  const std::vector<Flag> flags = {
      {"by", FlagKind::kInteger, "N",
       "Moves all by N positions, in place of start and from_start."},
      {"from_start", FlagKind::kInteger, "N", "Former position of each first token; or"},
      {"from_starts", FlagKind::kIntegers, "0,7", "one for each sequence; or"},
      {"from_positions", FlagKind::kIntegers, "0,1,2", "one for each token."},
      {"from_seq_lens", FlagKind::kIntegers, "N", "Former length, for dynamic and longrope."},
  };
  return {"reposition",
          "",
          "Moves rotated tensors in .npy files to other positions or another config.",
          WithTensorFlags(Joined(flags, FromRopeFlags())),
          &RunReposition,
          Command::Asks::kAny};
}

}  // namespace rope::client
