// tables: exact cos and sin as .npy files.

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "client/cli/npy.h"
#include "kernels/status_macros.h"

namespace rope::client {
namespace {

// Rows of one call: in every layout and dtype, heads of 1024 channels stay below the server's limit
// of 16 MiB.
constexpr int64_t kRowsPerCall = 1024;
constexpr int64_t kRowsMax = int64_t{1} << 22;

// The positions from `begin` to --end, or those of --positions.
Result<std::vector<int64_t>> PositionsOf(const Arguments& arguments) {
  std::vector<int64_t> positions = arguments.Integers("positions");
  const bool has_range = arguments.Has("begin") || arguments.Has("end");
  if (has_range == arguments.Has("positions")) {
    return Misused("--end, --positions: got both or none, want exactly one");
  }
  if (!has_range) return positions;
  const int64_t begin = arguments.Integer("begin").value_or(0);
  const int64_t end = arguments.Integer("end").value_or(begin);
  if (begin < 0 || end <= begin || end - begin > kRowsMax) {
    return Misused(absl::StrCat("--begin, --end: got ", begin, " and ", end, ", want 1 to ",
                                kRowsMax, " positions from 0 on"));
  }
  for (int64_t i = begin; i < end; ++i) positions.push_back(i);
  return positions;
}

// The former positions of `rows` rows; empty: the rows rotate and do not move.
Result<std::vector<int64_t>> FromPositionsOf(const Arguments& arguments, size_t rows) {
  std::vector<int64_t> positions = arguments.Integers("from_positions");
  const auto begin = arguments.Integer("from_begin");
  if (begin.has_value() && arguments.Has("from_positions")) {
    return Misused("--from_begin, --from_positions: got both, want one");
  }
  if (begin.has_value()) {
    for (size_t i = 0; i < rows; ++i) positions.push_back(*begin + static_cast<int64_t>(i));
  }
  if (!positions.empty() && positions.size() != rows) {
    return Misused(absl::StrCat("--from_positions: got ", positions.size(), " positions, want ",
                                rows, ", one for each row"));
  }
  if (positions.empty() && HasFromRope(arguments)) {
    return Misused("--from_begin, --from_positions: got none with another embedding, want one");
  }
  return positions;
}

Status CheckOutputs(const Arguments& arguments, TableLayout layout) {
  const bool has_two = layout == TableLayout::kCosSin || layout == TableLayout::kDuplicated;
  if (arguments.Has("output") != has_two && arguments.Has("output_cos") == has_two &&
      arguments.Has("output_sin") == has_two) {
    return {};
  }
  return Misused(has_two ? "--output_cos, --output_sin: want both for this --layout"
                         : "--output: want FILE.npy, and no other, for this --layout");
}

// A table that is asked for in parts.
struct Table {
  TablesRequest request;  // without positions
  std::vector<int64_t> positions;
  std::vector<int64_t> from_positions;
};

Result<Table> TableOf(const Arguments& arguments) {
  Table table;
  ROPE_ASSIGN_OR_RETURN(table.request.rope, RopeSpecOf(arguments));
  ROPE_ASSIGN_OR_RETURN(
      const std::optional<DType> dtype,
      DTypeOf(arguments, "dtype",
              {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}));
  table.request.dtype = dtype.value_or(DType::kFloat32);
  ROPE_ASSIGN_OR_RETURN(table.request.layout,
                        ChoiceOf<TableLayout>(arguments, "layout",
                                              {{"cos_sin_cache", TableLayout::kCosSinCache},
                                               {"cos_sin", TableLayout::kCosSin},
                                               {"duplicated", TableLayout::kDuplicated},
                                               {"complex", TableLayout::kComplex}}));
  ROPE_RETURN_IF_ERROR(CheckOutputs(arguments, table.request.layout));
  ROPE_ASSIGN_OR_RETURN(table.positions, PositionsOf(arguments));
  ROPE_ASSIGN_OR_RETURN(table.from_positions, FromPositionsOf(arguments, table.positions.size()));
  table.request.seq_len =
      arguments.Integer("seq_len").value_or(std::ranges::max(table.positions) + 1);
  table.request.head_dim = arguments.Integer("head_dim");
  table.request.skip_attention_factor = arguments.Has("skip_attention_factor");
  if (table.from_positions.empty()) return table;
  table.request.reposition.emplace().from_seq_len = std::ranges::max(table.from_positions) + 1;
  if (!HasFromRope(arguments)) return table;
  ROPE_ASSIGN_OR_RETURN(table.request.reposition->from_rope, RopeSpecOf(arguments, "from_"));
  return table;
}

void Append(const TableArray& part, TableArray& whole) {
  if (whole.shape.empty()) {
    whole = part;
    return;
  }
  whole.shape[0] += part.shape[0];
  whole.data.insert(whole.data.end(), part.data.begin(), part.data.end());
}

Result<TablesReply> AskFor(Table table, const Arguments& arguments) {
  ROPE_ASSIGN_OR_RETURN(const Client client, ConnectToAny(arguments));
  TablesReply whole;
  const auto rows = static_cast<int64_t>(table.positions.size());
  for (int64_t begin = 0; begin < rows; begin += kRowsPerCall) {
    const int64_t end = std::min(rows, begin + kRowsPerCall);
    const auto part_of = [begin, end](const std::vector<int64_t>& all) {
      return std::vector<int64_t>(all.begin() + begin, all.begin() + end);
    };
    table.request.positions.position_ids = part_of(table.positions);
    if (table.request.reposition.has_value()) {
      table.request.reposition->from.position_ids = part_of(table.from_positions);
    }
    ROPE_ASSIGN_OR_RETURN(TablesReply part,
                          client.GetTables(table.request, CallOptionsOf(arguments)));
    for (const auto array : {&TablesReply::table, &TablesReply::cos, &TablesReply::sin}) {
      Append(part.*array, whole.*array);
      std::swap(part.*array, whole.*array);
    }
    whole = std::move(part);  // with the warnings of the last rows, which have the largest range
  }
  return whole;
}

Status WriteTable(const TableArray& array, const std::string& path) {
  const absl::string_view data(reinterpret_cast<const char*>(array.data.data()), array.data.size());
  return WriteNpy(path, array.dtype, array.shape, data);
}

Status WriteTables(const TablesReply& reply, const Arguments& arguments) {
  if (arguments.Has("output")) return WriteTable(reply.table, arguments.Text("output"));
  ROPE_RETURN_IF_ERROR(WriteTable(reply.cos, arguments.Text("output_cos")));
  return WriteTable(reply.sin, arguments.Text("output_sin"));
}

void PrintTables(const TablesReply& reply, bool as_json) {
  const TableArray& array = reply.table.shape.empty() ? reply.cos : reply.table;
  if (as_json) {
    absl::PrintF("%s", JsonText({{"config_id", reply.config_id},
                                 {"shape", array.shape},
                                 {"attention_factor", reply.attention_factor},
                                 {"attention_factor_applied", reply.attention_factor_applied},
                                 {"seq_len", reply.seq_len},
                                 {"depends_on_seq_len", reply.depends_on_seq_len},
                                 {"warnings", reply.warnings}}));
    return;
  }
  absl::PrintF("[%s], attention factor %.9g %s, for seq_len %d%s\n",
               absl::StrJoin(array.shape, ", "), reply.attention_factor,
               reply.attention_factor_applied ? "applied" : "not applied", reply.seq_len,
               reply.depends_on_seq_len ? " (another length gives other numbers)" : "");
  for (const std::string& warning : reply.warnings) absl::PrintF("warning: %s\n", warning);
}

Result<int> RunTables(const Arguments& arguments) {
  ROPE_ASSIGN_OR_RETURN(Table table, TableOf(arguments));
  ROPE_ASSIGN_OR_RETURN(const TablesReply reply, AskFor(std::move(table), arguments));
  ROPE_RETURN_IF_ERROR(WriteTables(reply, arguments));
  PrintTables(reply, arguments.Has("json"));
  return kExitOk;
}

}  // namespace

Command TablesCommand() {
  const std::vector<Flag> flags = {
      {"begin", FlagKind::kInteger, "N", "First position. Default 0."},
      {"end", FlagKind::kInteger, "N", "One past the last position; or"},
      {"positions", FlagKind::kIntegers, "0,1,2", "a list of positions."},
      {"from_begin", FlagKind::kInteger, "N", "Move vectors: the first row's former position; or"},
      {"from_positions", FlagKind::kIntegers, "0,1,2", "one for each row."},
      {"layout", FlagKind::kText, "NAME",
       "cos_sin_cache (default: [rows, rotary_dim], cosines then sines), complex ([rows, n, 2]), "
       "cos_sin or duplicated (two files)."},
      {"dtype", FlagKind::kText, "DTYPE", "fp32 (default), fp16, bf16 (as uint16) or fp64."},
      {"seq_len", FlagKind::kInteger, "N", "Length that decides dynamic and longrope."},
      {"head_dim", FlagKind::kInteger, "N", "Channels of a head, where the config does not say."},
      {"skip_attention_factor", FlagKind::kSwitch, "", "Print the factor, do not apply it."},
      {"output", FlagKind::kText, "FILE.npy", "Where the table goes; or"},
      {"output_cos", FlagKind::kText, "FILE.npy", "the cosines of a layout of two files, and"},
      {"output_sin", FlagKind::kText, "FILE.npy", "its sines."},
      kJsonFlag,
  };
  return {"tables",
          "",
          "Writes exact cos and sin as .npy files, in the layout of an engine.",
          WithRopeFlags(Joined(flags, FromRopeFlags())),
          &RunTables,
          Command::Asks::kAny};
}

}  // namespace rope::client
