// diff: compares the rotations of two config.json files in this process.

#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/lint/diff.h"
#include "kernels/status_macros.h"

namespace rope::client {
namespace {

constexpr double kErrorDefault = 1e-3;

std::string TextOf(const Json& value) {
  if (value.is_number_float()) return absl::StrFormat("%.17g", value.get<double>());
  if (!value.is_string()) return value.dump();
  return value == "" ? "none" : value.get<std::string>();
}

void PrintBoth(absl::string_view name, const std::string& a, const std::string& b) {
  const std::string text = a == b ? a : absl::StrCat(a, " | ", b);
  absl::PrintF("  %-17s %s\n", name, text);
}

void PrintSettings(const Json& a, const Json& b) {
  // `unsaid` is not printed where both have it; true: whatever is equal, null: nothing.
  const struct {
    const char* key;
    const char* name;
    Json unsaid = {};
  } settings[] = {{"pairing", "pairing"},
                  {"head_dim", "head_dim"},
                  {"rotary_dim", "rotary_dim"},
                  {"rotary_offset", "rotary_offset", 0},
                  {"mrope", "mrope", ""},
                  {"xpos", "xpos", ""},
                  {"softmax_scale", "softmax scale", true},
                  {"temperature", "temperature of q", true},
                  {"attention_factor", "attention factor"}};
  for (const auto& [key, name, unsaid] : settings) {
    if (a.at(key) == b.at(key) && (unsaid == true || unsaid == a.at(key))) continue;
    PrintBoth(name, TextOf(a.at(key)), TextOf(b.at(key)));
  }
}

std::string PositionText(const Json& first) {
  if (first.is_null()) return "not searched";
  const bool exact = first.at("exact") == true;
  const Json& position = first.at("position");
  if (!position.is_null()) {
    return absl::StrCat(position.dump(), exact ? "" : " at the latest", ", index ",
                        first.at("index").dump());
  }
  return absl::StrCat(exact ? "none up to " : "none found up to ",
                      first.at("searched_up_to").dump());
}

void PrintDifference(const Json& difference, double error) {
  const std::string type = difference.at("layer_type");
  const Json& seq_len = difference.at("seq_len");
  const Json& a = difference.at("a");
  const Json& b = difference.at("b");
  const std::string length = seq_len.is_null() ? "" : ", for seq_len " + seq_len.dump();
  absl::PrintF("%s%s: %s\n", type.empty() ? "all layers" : type, length,
               difference.at("equal") == true ? "equal" : "different");
  if (a.is_null() || b.is_null()) {
    absl::PrintF("  only %s has this layer type\n", b.is_null() ? "A" : "B");
    return;
  }
  if (a.at("rotates") == false || b.at("rotates") == false) {
    const auto yes_or_no = [](const Json& each) {
      return each.at("rotates") == true ? "yes" : "no";
    };
    return PrintBoth("rotates", yes_or_no(a), yes_or_no(b));
  }
  PrintSettings(a, b);
  const std::string note = difference.at("note");
  if (!note.empty()) absl::PrintF("  %s\n", note);
  if (const Json& frequency = difference.at("inv_freq"); !frequency.is_null()) {
    absl::PrintF("  inv_freq          first differs at index %s: %s | %s\n",
                 frequency.at("index").dump(), TextOf(frequency.at("a")),
                 TextOf(frequency.at("b")));
  } else {
    absl::PrintF("  inv_freq          equal\n");
  }
  absl::PrintF("  first position    whose cos or sin differ by more than %g: %s\n", error,
               PositionText(difference.at("first_position")));
}

// A side of the comparison: one file or one engine is that of both.
Result<DiffSide> ReadSide(const Arguments& arguments, size_t which) {
  const Result<std::string> text = ReadConfig(*OfSide(which, arguments.positional()));
  // Of every config that cannot be compared the code is printed, of a GGUF file too.
  if (!text.ok()) return Status(text.status().code(), text.status().message());
  return SideOf(*text, arguments.Text("sub_config"),
                OfSide(which, arguments.Texts("engine")).value_or(""));
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
  ROPE_ASSIGN_OR_RETURN(const Json differences, Diff(a, b, error));
  if (arguments.Has("json")) {
    absl::PrintF("%s", JsonText(differences));
  } else {
    for (const Json& difference : differences) PrintDifference(difference, error);
  }
  return std::ranges::all_of(differences, [](const Json& each) { return each.at("equal") == true; })
             ? kExitOk
             : kExitFailed;
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
