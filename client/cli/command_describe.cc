// describe: what a config means, as a page or as JSON. A file and a preset are described in this
// process, unless --target names a server. Layers that differ are described one after the other.
#include <cmath>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "client/cli/local_describe.h"
#include "kernels/compat/attention_scale.h"
#include "kernels/config/presets.h"
#include "kernels/status_macros.h"

namespace rope::client {
namespace {

// What the scaling did to this frequency, with the number that it is multiplied by.
std::string ScalingOf(const DescribeReply& reply, size_t index) {
  const RopeConfig& config = reply.config;
  const double exponent = -static_cast<double>(index) / static_cast<double>(reply.inv_freq.size());
  const double plain = std::pow(config.rope_theta, exponent);
  const double ratio = reply.inv_freq[index] / plain;
  const double factor = config.factor.value_or(1);
  switch (index < reply.scaling.size() ? reply.scaling[index] : FrequencyScaling::kUnspecified) {
    case FrequencyScaling::kKept:
      return "kept";
    case FrequencyScaling::kStill:
      return "does not turn";
    case FrequencyScaling::kBlended:
      return absl::StrFormat("blended, x %.6g", ratio);
    case FrequencyScaling::kScaled:
      if (std::abs(ratio * factor - 1) < 1e-9) return absl::StrFormat("divided by %g", factor);
      break;
    case FrequencyScaling::kUnspecified:
      break;
  }
  return absl::StrFormat("x %.6g", ratio);
}

// What multiplies logits and q beside the rotation.
void PrintScale(const DescribeReply& reply) {
  if (!reply.scale.has_value()) return;
  const AttentionScale& scale = *reply.scale;
  if (scale.softmax != 1) {
    absl::PrintF("softmax scale     times %.9g, rotated channels times %.9g in all\n",
                 scale.softmax, scale.logits);
  }
  if (scale.temperature_beta != 0) {
    absl::PrintF("temperature of q  %s\n", kernels::TemperatureText(scale));
  }
}

void PrintHead(const DescribeReply& reply) {
  const RopeConfig& config = reply.config;
  absl::PrintF("type              %s\n", Name(config.rope_type));
  if (!reply.layer_type.empty()) absl::PrintF("layer type        %s\n", reply.layer_type);
  absl::PrintF("theta             %.17g\n", config.rope_theta);
  absl::PrintF("head_dim          %d\n", config.head_dim.value_or(0));
  absl::PrintF("rotary_dim        %d\n", config.rotary_dim.value_or(0));
  absl::PrintF("pairing           %s\n", reply.pairing.has_value()
                                             ? Name(*reply.pairing)
                                             : "not said: rotate needs --pairing");
  if (reply.channel_order.has_value()) {
    absl::PrintF("channel order     the model's code leaves pairs as %s\n",
                 Name(*reply.channel_order));
  }
  if (config.factor.has_value()) absl::PrintF("factor            %.17g\n", *config.factor);
  if (config.original_max_position_embeddings.has_value()) {
    absl::PrintF("original length   %d\n", *config.original_max_position_embeddings);
  }
  if (config.max_position_embeddings.has_value()) {
    absl::PrintF("length            %d\n", *config.max_position_embeddings);
  }
  if (config.mrope.has_value() && config.mrope->axes.empty()) {
    absl::PrintF("mrope             %s%s\n", absl::StrJoin(config.mrope->section, ", "),
                 config.mrope->layout == Mrope::Layout::kInterleaved ? ", interleaved" : "");
  }
  if (reply.ramp.has_value()) {
    absl::PrintF("ramp              index %.6g to %.6g, wavelength %.6g to %.6g positions\n",
                 reply.ramp->low_index, reply.ramp->high_index, reply.ramp->low_wavelength,
                 reply.ramp->high_wavelength);
  }
  absl::PrintF("attention factor  %.17g\n", reply.attention_factor);
  PrintScale(reply);
  absl::PrintF("for seq_len       %d%s\n", reply.seq_len,
               reply.depends_on_seq_len ? " (another length gives other numbers)" : "");
  if (config.precision == Precision::kHf) absl::PrintF("precision         hf\n");
  if (reply.float32_angle_position > 0) {
    absl::PrintF("float32 angles    off by up to %.3g in cos and sin up to position %d\n",
                 reply.float32_angle_error, reply.float32_angle_position);
  }
  if (!reply.config_id.empty()) absl::PrintF("config_id         %s\n", reply.config_id);
}

void PrintFindings(const DescribeReply& reply, const std::vector<std::string>& notes) {
  for (const std::string& warning : reply.warnings) absl::PrintF("warning: %s\n", warning);
  for (const std::string& note : notes) absl::PrintF("note: %s\n", note);
  for (const Reading& reading : reply.readings) {
    absl::PrintF(
        "%s%s %s\n", EngineText(reading),
        reading.attention_factor == 0 ? "" : " reads this differently:",
        WithNumbers(reading.difference, reading.attention_factor, reading.inv_freq_max_relative));
  }
  for (const ScaleReading& reading : reply.scale_readings) {
    absl::PrintF("%s scales attention differently: %s\n", EngineText(reading), reading.difference);
  }
}

void PrintFrequencies(const DescribeReply& reply) {
  absl::PrintF("\n%5s  %-23s %-16s %s\n", "index", "inv_freq", "wavelength", "scaling");
  for (size_t i = 0; i < reply.inv_freq.size(); ++i) {
    const double wavelength = i < reply.wavelengths.size() ? reply.wavelengths[i] : std::nan("");
    absl::PrintF("%5d  %-23.17g %-16.6g %s\n", i, reply.inv_freq[i], wavelength,
                 ScalingOf(reply, i));
  }
}

void PrintRows(const DescribeReply& reply) {
  for (const Row& row : reply.rows) {
    absl::PrintF("\nposition %d\n%5s  %-23s %s\n", row.position, "index", "cos", "sin");
    for (size_t i = 0; i < row.cos.size() && i < row.sin.size(); ++i) {
      absl::PrintF("%5d  %-23.17g %.17g\n", i, row.cos[i], row.sin[i]);
    }
    if (!row.sinusoid.empty()) absl::PrintF("channel  sinusoid\n");
    for (size_t i = 0; i < row.sinusoid.size(); ++i) {
      absl::PrintF("%7d  %.17g\n", i, row.sinusoid[i]);
    }
  }
}

void PrintPage(const DescribeReply& reply, const std::vector<std::string>& notes) {
  if (!reply.rotates) {
    if (!reply.layer_type.empty()) absl::PrintF("layer type        %s\n", reply.layer_type);
    absl::PrintF("This layer has no rotary embedding: tensors come back unchanged.\n");
    PrintScale(reply);
    return PrintFindings(reply, notes);
  }
  PrintHead(reply);
  PrintFindings(reply, notes);
  PrintFrequencies(reply);
  PrintRows(reply);
}

// A config_id, and a model that is no preset, are known to a server only.
bool IsAtHand(const RopeSpec& spec) {
  return spec.config_id.empty() &&
         (spec.model.empty() || kernels::FindPreset(spec.model) != nullptr);
}

// An object, or a list of them if there are several layer types.
Status PrintJson(const std::vector<DescribeReply>& replies) {
  const bool is_list = replies.size() > 1;
  std::string text = is_list ? "[" : "";
  for (size_t i = 0; i < replies.size(); ++i) {
    ROPE_ASSIGN_OR_RETURN(const std::string json, ToJson(replies[i]));
    absl::StrAppend(&text, i > 0 ? "," : "", json);
  }
  absl::PrintF("%s%s", text, is_list ? "]\n" : "");
  return {};
}

// A server's answer has no notes: those of a config that is at hand are found here.
std::vector<std::string> NotesOfReply(const DescribeReply& reply, RopeSpec spec) {
  if (!IsAtHand(spec)) return {};
  if (!spec.layer.has_value()) spec.layer_type = reply.layer_type;
  return NotesOf(spec);
}

Result<std::vector<DescribeReply>> DescribeThere(const DescribeRequest& request,
                                                 const Arguments& arguments) {
  const Result<Client> client = ConnectTo(arguments);
  Result<DescribeReply> reply = client.ok() ? client->Describe(request, CallOptionsOf(arguments))
                                            : Result<DescribeReply>(client.status());
  if (reply.ok()) return std::vector<DescribeReply>{*std::move(reply)};
  // The server that is not there was not asked for: the name is what is wrong.
  const bool named = arguments.Has("target") || request.rope.model.empty();
  if (named || reply.status().code() != StatusCode::kUnavailable) return reply.status();
  return UnknownPreset(request.rope.model);
}

Result<int> RunDescribe(const Arguments& arguments) {
  if (arguments.Has("plot")) {
    return Misused(absl::StrCat("--plot: got ", arguments.Text("plot"),
                                ", want `ropeserve plot CONFIG --output=FILE` of the Python "
                                "package ropeserve, which draws plots"));
  }
  ROPE_ASSIGN_OR_RETURN(const RopeSpec spec, RopeSpecOf(arguments));
  const DescribeRequest request{.rope = spec,
                                .seq_len = arguments.Integer("seq_len"),
                                .positions = arguments.Integers("positions"),
                                .head_dim = arguments.Integer("head_dim"),
                                .sinusoidal = arguments.Has("sinusoidal")};
  const bool here = IsAtHand(spec) && !arguments.Has("target");
  ROPE_ASSIGN_OR_RETURN(const std::vector<DescribeReply> replies,
                        here ? DescribeHere(request) : DescribeThere(request, arguments));
  if (arguments.Has("json")) {
    ROPE_RETURN_IF_ERROR(PrintJson(replies));
    return kExitOk;
  }
  for (size_t i = 0; i < replies.size(); ++i) {
    if (i > 0) absl::PrintF("\n");
    PrintPage(replies[i], NotesOfReply(replies[i], spec));
  }
  return kExitOk;
}

}  // namespace

Command DescribeCommand() {
  return {
      "describe", "[FILE]",
      "Says what a config means: frequencies, attention factor, warnings. Without --target a "
      "FILE and a preset need no server.",
      WithRopeFlags({
          {"seq_len", FlagKind::kInteger, "N", "Length that decides dynamic and longrope."},
          {"head_dim", FlagKind::kInteger, "N",
           "Channels of a head, where the config does not say."},
          {"positions", FlagKind::kIntegers, "0,1,2", "Positions whose cos and sin to print."},
          {"sinusoidal", FlagKind::kSwitch, "", "Print what add_sinusoidal adds there, too."},
          {"json", FlagKind::kSwitch, "", "Print the answer as JSON."},
          {"plot", FlagKind::kText, "FILE", "Is `ropeserve plot` of the Python package ropeserve."},
      }),
      &RunDescribe};
}

}  // namespace rope::client
