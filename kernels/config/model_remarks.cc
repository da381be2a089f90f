#include "kernels/config/model_remarks.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "kernels/config/model_defaults.h"
#include "kernels/config/model_types.h"
#include "kernels/str_cat.h"
#include "proto/nearest_name.h"

namespace rope::kernels {
namespace {

using Fact = std::pair<std::string_view, std::string_view>;  // of a model_type

// Models of transformers 5.23.0 whose modeling file has no rotary embedding.
constexpr std::string_view kLearned = "learned positions";
constexpr std::string_view kSinusoids = "sinusoids that are added to the input";
constexpr std::string_view kAlibi = "ALiBi, a bias on the attention scores";
constexpr std::string_view kBias = "a learned bias on the attention scores";
constexpr std::string_view kStates = "no attention";
constexpr Fact kUnrotated[] = {
    {"albert", kLearned},
    {"bart", kLearned},
    {"bert", kLearned},
    {"bloom", kAlibi},
    {"clip_text_model", kLearned},
    {"deberta", kBias},
    {"deberta-v2", kBias},
    {"distilbert", kLearned},
    {"electra", kLearned},
    {"falcon_mamba", kStates},
    {"gpt2", kLearned},
    {"gpt_bigcode", kLearned},
    {"gpt_neo", kLearned},
    {"longt5", kBias},
    {"mamba", kStates},
    {"mamba2", kStates},
    {"mbart", kLearned},
    {"mpt", kAlibi},
    {"mt5", kBias},
    {"opt", kLearned},
    {"pegasus", kSinusoids},
    {"roberta", kLearned},
    {"rwkv", kStates},
    {"switch_transformers", kBias},
    {"t5", kBias},
    {"umt5", kBias},
    {"whisper", kLearned},
    {"xglm", kSinusoids},
    {"xlm-roberta", kLearned},
};

// Models whose code is in their repository, and what it does.
constexpr Fact kRemoteCode[] = {
    {"baichuan", "it turns half pairs in the 7B models, and has ALiBi in the 13B models"},
    {"chatglm",
     "it turns half of each head, as interleaved pairs, with a base of "
     "10000 * rope_ratio"},
    {"internlm", "it turns half pairs"},
    {"internlm2", "it turns half pairs"},
    {"minimax_text_01",
     "it turns half pairs of the first rotary_dim channels, in the layers "
     "whose attn_type_list is 1"},
    {"qwen",
     "it turns half pairs; with use_dynamic_ntk the base follows the length, and with "
     "use_logn_attn q grows with its position"},
};

// Keys by which such code, or older code, changes the rotation.
constexpr std::string_view kKeys[] = {
    "alibi",          "attn_type_list",  "rope_pct",
    "rope_percent",   "rope_ratio",      "rotary_emb_fraction",
    "rotary_percent", "use_dynamic_ntk", "use_logn_attn",
};

template <size_t size>
std::string_view Find(const Fact (&facts)[size], std::string_view name) {
  const auto found = std::find_if(std::begin(facts), std::end(facts),
                                  [name](const Fact& fact) { return fact.first == name; });
  return found == std::end(facts) ? std::string_view() : found->second;
}

bool IsTrue(const JsonFields& fields, std::string_view key) {
  const nlohmann::json* const value = fields.Find(key);
  return value != nullptr && *value == true;
}

// The known name that is one or two letters away, as the end of a sentence.
std::string Nearest(std::string_view model_type) {
  constexpr size_t kEditsMax = 2;
  std::vector<std::string> names = ModelTypeNames();
  for (const auto& [name, fact] : kUnrotated) names.emplace_back(name);
  const std::string nearest = proto::NearestName(model_type, names);
  return proto::DidYouMean(proto::Edits(model_type, nearest) <= kEditsMax ? nearest : "");
}

// Whether the value of one of kKeys changes the rotation.
bool Changes(const nlohmann::json& value) {
  // Of attn_type_list only layers of type 0 differ.
  if (value.is_array()) return std::find(value.begin(), value.end(), 0) != value.end();
  return value != false;
}

}  // namespace

std::string_view PositionsInsteadOfRope(std::string_view model_type, const JsonFields& model) {
  if (StatesParameters(model.json())) return "";
  if (IsTrue(model, "alibi")) return kAlibi;
  return Find(kUnrotated, model_type);
}

void RemarkModel(std::string_view model_type, const JsonFields& model,
                 std::vector<Remark>& remarks) {
  const std::string shown = Show(std::string(model_type));
  if (const std::string_view fact = Find(kRemoteCode, model_type); !fact.empty()) {
    remarks.push_back({RemarkKind::kRemoteCode,
                       StrCat("model_type ", shown,
                              " has its code in the model's repository, which is not followed "
                              "here: ",
                              fact)});
  } else if (!model_type.empty() && !IsKnownModelType(model_type) &&
             PositionsInsteadOfRope(model_type, model).empty()) {
    remarks.push_back(
        {RemarkKind::kUnknownModelType,
         StrCat("model_type ", shown, " is not known, so neither are its pairing and its defaults",
                Nearest(model_type))});
  }
  for (const std::string_view key : kKeys) {
    const nlohmann::json* const value = model.Find(key);
    if (value == nullptr || !Changes(*value)) continue;
    if (key == "alibi" && !PositionsInsteadOfRope(model_type, model).empty()) continue;
    remarks.push_back({RemarkKind::kRemoteCode, StrCat(model.PathOf(key), " is not read")});
  }
}

}  // namespace rope::kernels
