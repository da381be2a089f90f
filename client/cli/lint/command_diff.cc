// diff: compares the rotations of two config.json files in this process.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "client/cli/arguments.h"
#include "client/cli/commands.h"
#include "client/cli/lint/diff.h"
#include "kernels/config/config_json.h"
#include "kernels/status_macros.h"

namespace rope::client {
namespace {

constexpr double kErrorDefault = 1e-3;

void PrintBoth(absl::string_view name, const std::string& a, const std::string& b) {
  const std::string text = a == b ? a : absl::StrCat(a, " | ", b);
  absl::PrintF("  %-17s %s\n", name, text);
}

void PrintSettings(const Rotation& a, const Rotation& b) {
  PrintBoth("pairing", a.pairing, b.pairing);
  PrintBoth("head_dim", absl::StrCat(a.head_dim), absl::StrCat(b.head_dim));
  PrintBoth("rotary_dim", absl::StrCat(a.rotary_dim), absl::StrCat(b.rotary_dim));
  if (a.rotary_offset != 0 || b.rotary_offset != 0) {
    PrintBoth("rotary_offset", absl::StrCat(a.rotary_offset), absl::StrCat(b.rotary_offset));
  }
  const auto or_none = [](const std::string& text) { return text.empty() ? "none" : text; };
  if (a.mrope != b.mrope || !a.mrope.empty())
    PrintBoth("mrope", or_none(a.mrope), or_none(b.mrope));
  if (a.xpos != b.xpos || !a.xpos.empty()) PrintBoth("xpos", or_none(a.xpos), or_none(b.xpos));
  if (a.softmax_scale != b.softmax_scale) {
    PrintBoth("softmax scale", or_none(a.softmax_scale), or_none(b.softmax_scale));
  }
  if (a.temperature != b.temperature) {
    PrintBoth("temperature of q", or_none(a.temperature), or_none(b.temperature));
  }
  PrintBoth("attention factor", absl::StrFormat("%.17g", a.turns.factor),
            absl::StrFormat("%.17g", b.turns.factor));
}

std::string PositionText(const LayerDifference& difference) {
  if (!difference.first.has_value()) return "not searched";
  const FirstDifference& first = *difference.first;
  if (first.position.has_value()) {
    return absl::StrCat(*first.position, first.exact ? "" : " at the latest", ", index ",
                        first.column);
  }
  return absl::StrCat(first.exact ? "none up to " : "none found up to ", difference.end - 1);
}

void PrintDifference(const LayerDifference& difference, double error) {
  const std::string type = difference.layer_type.empty() ? "all layers" : difference.layer_type;
  const std::string length =
      difference.seq_len.has_value() ? absl::StrCat(", for seq_len ", *difference.seq_len) : "";
  absl::PrintF("%s%s: %s\n", type, length, difference.equal ? "equal" : "different");
  if (!difference.a.has_value() || !difference.b.has_value()) {
    absl::PrintF("  only %s has this layer type\n", difference.a.has_value() ? "A" : "B");
    return;
  }
  if (!difference.a->rotates || !difference.b->rotates) {
    const auto rotates = [](const Rotation& rotation) { return rotation.rotates ? "yes" : "no"; };
    return PrintBoth("rotates", rotates(*difference.a), rotates(*difference.b));
  }
  PrintSettings(*difference.a, *difference.b);
  if (!difference.note.empty()) absl::PrintF("  %s\n", difference.note);
  if (difference.frequency.has_value()) {
    absl::PrintF("  inv_freq          first differs at index %d: %.17g | %.17g\n",
                 difference.frequency->index, difference.frequency->a, difference.frequency->b);
  } else {
    absl::PrintF("  inv_freq          equal\n");
  }
  absl::PrintF("  first position    whose cos or sin differ by more than %g: %s\n", error,
               PositionText(difference));
}

// A side of the comparison: one file or one engine is that of both.
Result<DiffSide> ReadSide(const Arguments& arguments, size_t which) {
  const std::vector<std::string>& paths = arguments.positional();
  const std::vector<std::string> engines = arguments.Texts("engine");
  const Result<std::string> text = ReadConfig(paths[std::min(which, paths.size() - 1)]);
  // Of every config that cannot be compared the code is printed, of a GGUF file too.
  if (!text.ok()) return Status(text.status().code(), text.status().message());
  const std::string engine = engines.empty() ? "" : engines[std::min(which, engines.size() - 1)];
  return SideOf(*text, arguments.Text("sub_config"), engine);
}

Result<int> RunDiff(const Arguments& arguments) {
  const std::vector<std::string>& paths = arguments.positional();
  const size_t engines = arguments.Texts("engine").size();
  if (engines > 2) return Misused(absl::StrCat("--engine: got ", engines, ", want one or two"));
  if (paths.size() != 2 && (paths.size() != 1 || engines != 2)) {
    return Misused(
        absl::StrCat("diff: got ", paths.size(), " files, want two: A B; or one and --engine=A,B"));
  }
  const double error = arguments.Number("error").value_or(kErrorDefault);
  if (!(error > 0)) return Misused(absl::StrCat("--error: got ", error, ", want more than 0"));
  ROPE_ASSIGN_OR_RETURN(const DiffSide a, ReadSide(arguments, 0));
  ROPE_ASSIGN_OR_RETURN(const DiffSide b, ReadSide(arguments, 1));
  ROPE_ASSIGN_OR_RETURN(const std::vector<LayerDifference> differences, Diff(a, b, error));
  if (arguments.Has("json")) {
    absl::PrintF("%s", DiffJson(differences));
  } else {
    for (const LayerDifference& difference : differences) PrintDifference(difference, error);
  }
  return std::ranges::all_of(differences, &LayerDifference::equal) ? kExitOk : kExitFailed;
}

}  // namespace

Command DiffCommand() {
  return {"diff",
          "A [B]",
          "Compares the rotations of two config.json files, or of two engines, without a server.",
          {{"error", FlagKind::kNumber, "E",
            "Print the first position whose cos or sin differ by more. Default 1e-3."},
           {"engine", FlagKind::kTexts, "NAME[@VERSION]",
            "Compare what this engine makes of both; two, with a comma: A's and B's."},
           {"sub_config", FlagKind::kText, "NAME",
            "Compare the configs of this path inside both files: vision_config."},
           {"json", FlagKind::kSwitch, "", "Print an array with an object for each layer type."}},
          &RunDiff,
          Command::Asks::kNobody,
          "Exit status 0: the rotations are equal; 1: they differ; 2: a config cannot be read, or "
          "wrong usage."};
}

}  // namespace rope::client
