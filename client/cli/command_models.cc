// models, register, unregister: the names that the server knows.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "client/cli/commands.h"
#include "client/cli/json_output.h"

namespace rope::client {
namespace {

using Json = nlohmann::ordered_json;

std::string_view PairingName(const Model& model) {
  return model.pairing.has_value() ? Name(*model.pairing) : "unspecified";
}

Json JsonOf(const Model& model) {
  return {{"name", model.name},
          {"origin", model.origin},
          {"rope_type", model.rope_type},
          {"rope_theta", model.rope_theta},
          {"head_dim", model.head_dim},
          {"rotary_dim", model.rotary_dim},
          {"pairing", PairingName(model)},
          {"num_heads", model.num_heads},
          {"num_kv_heads", model.num_kv_heads},
          {"max_position_embeddings", model.max_position_embeddings},
          {"layer_types", model.layer_types}};
}

void PrintTable(const std::vector<Model>& models) {
  size_t width = absl::string_view("model").size();
  for (const Model& model : models) width = std::max(width, model.name.size());
  const auto name_width = static_cast<int>(width);
  absl::PrintF("%-*s %-12s %10s %8s %6s %-11s %9s %9s %s\n", name_width, "model", "type", "theta",
               "head_dim", "rotary", "pairing", "heads q/k", "length", "origin");
  for (const Model& model : models) {
    absl::PrintF("%-*s %-12s %10g %8d %6d %-11s %9s %9d %s%s\n", name_width, model.name,
                 model.rope_type, model.rope_theta, model.head_dim, model.rotary_dim,
                 PairingName(model), absl::StrCat(model.num_heads, "/", model.num_kv_heads),
                 model.max_position_embeddings, model.origin,
                 model.layer_types.empty()
                     ? ""
                     : absl::StrCat(" (", absl::StrJoin(model.layer_types, ", "), ")"));
  }
}

// The only positional argument of register and unregister.
Result<std::string> NameOf(const Arguments& arguments) {
  if (arguments.positional().size() == 1) return arguments.positional().front();
  return Status(StatusCode::kInvalidArgument,
                absl::StrCat("NAME: got ", arguments.positional().size(), " names, want one"));
}

}  // namespace

int RunModels(const Arguments& arguments) {
  const Result<Client> client = ConnectTo(arguments);
  if (!client.ok()) return Fail(client.status());
  const auto models = client->ListModels(CallOptionsOf(arguments));
  if (!models.ok()) return Fail(models.status());
  if (!arguments.Has("json")) {
    PrintTable(*models);
    return kExitOk;
  }
  Json list = Json::array();
  for (const Model& model : *models) list.push_back(JsonOf(model));
  absl::PrintF("%s", JsonText(list));
  return kExitOk;
}

std::vector<Flag> RegisterFlags() {
  return WithRopeFlags({kJsonFlag});
}

int RunRegister(const Arguments& arguments) {
  const Result<std::string> name = NameOf(arguments);
  if (!name.ok()) return Misuse(name.status().message());
  const Result<RopeSpec> rope = NamedRopeOf(arguments);
  if (!rope.ok()) return FailOrMisuse(rope.status());
  const Result<Client> client = ConnectTo(arguments);
  if (!client.ok()) return Fail(client.status());
  const auto registered = client->RegisterModel(*name, *rope, CallOptionsOf(arguments));
  if (!registered.ok()) return Fail(registered.status());
  if (arguments.Has("json")) {
    absl::PrintF(
        "%s", JsonText({{"model", JsonOf(registered->model)}, {"warnings", registered->warnings}}));
    return kExitOk;
  }
  PrintTable({registered->model});
  for (const std::string& warning : registered->warnings) absl::PrintF("warning: %s\n", warning);
  return kExitOk;
}

int RunUnregister(const Arguments& arguments) {
  const Result<std::string> name = NameOf(arguments);
  if (!name.ok()) return Misuse(name.status().message());
  const Result<Client> client = ConnectTo(arguments);
  if (!client.ok()) return Fail(client.status());
  const Status status = client->UnregisterModel(*name, CallOptionsOf(arguments));
  if (!status.ok()) return Fail(status);
  if (arguments.Has("json")) {
    absl::PrintF("%s", JsonText({{"unregistered", *name}}));
  } else {
    absl::PrintF("unregistered %s\n", *name);
  }
  return kExitOk;
}

}  // namespace rope::client
