#include "tests/fuzz/config_writer.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace rope::testing {
namespace {

std::string Quoted(std::string_view text) {
  return absl::StrCat("\"", std::string(text), "\"");
}

std::string Object(const std::string& fields) {
  return absl::StrCat("{", fields, "}");
}

void Append(const std::string& field, std::string& fields) {
  if (!fields.empty() && !field.empty()) fields += ", ";
  fields += field;
}

// The reader has rules for each of these, except the last one.
constexpr std::string_view kModelTypes[] = {"llama",
                                            "gemma3",
                                            "gemma3_text",
                                            "olmo3",
                                            "cohere2",
                                            "exaone4",
                                            "deepseek_v3",
                                            "ernie4_5_vl",
                                            "llama4",
                                            "modernbert",
                                            "qwen3_next",
                                            "smollm3",
                                            "glm4",
                                            "neomme",
                                            "dbrx",
                                            "pixtral",
                                            "kimi_k25_vision",
                                            "minimax_m3_vl_vision",
                                            "qwen3_vl_text",
                                            "other"};

}  // namespace

const std::vector<ConfigWriter::Key> ConfigWriter::kModelKeys = {
    {"_sliding_window_pattern", Kind::kPattern},
    {"full_attention_interval", Kind::kPeriod},
    {"global_attn_every_n_layers", Kind::kPeriod},
    {"global_head_dim", Kind::kDim},
    {"global_rope_theta", Kind::kTheta},
    {"head_dim", Kind::kDim},
    {"hidden_size", Kind::kLength},
    {"hybrid_layer_pattern", Kind::kLayerFlags},
    {"layer_types", Kind::kLayerTypes},
    {"local_rope_theta", Kind::kTheta},
    {"max_position_embeddings", Kind::kLength},
    {"model_type", Kind::kModelType},
    {"multi_query", Kind::kFlag},
    {"n_embd", Kind::kLength},
    {"n_head", Kind::kCount},
    {"n_layer", Kind::kLayers},
    {"n_positions", Kind::kLength},
    {"no_rope_layer_interval", Kind::kPeriod},
    {"no_rope_layers", Kind::kLayerFlags},
    {"num_attention_heads", Kind::kCount},
    {"num_hidden_layers", Kind::kLayers},
    {"num_key_value_heads", Kind::kCount},
    {"num_kv_heads", Kind::kCount},
    {"original_max_position_embeddings", Kind::kLength},
    {"partial_rotary_factor", Kind::kFraction},
    {"qk_rope_head_dim", Kind::kDim},
    {"rope_interleave", Kind::kFlag},
    {"rope_local_base_freq", Kind::kTheta},
    {"rope_ratio", Kind::kNumber},
    {"rope_theta", Kind::kTheta},
    {"rotary_dim", Kind::kDim},
    {"rotary_emb_base", Kind::kTheta},
    {"rotary_offset", Kind::kCount},
    {"rotary_pct", Kind::kFraction},
    {"sliding_window", Kind::kLength},
    {"sliding_window_pattern", Kind::kPattern},
    {"swa_head_dim", Kind::kDim},
    {"swa_rope_theta", Kind::kTheta},
};

const std::vector<ConfigWriter::Key> ConfigWriter::kScalingKeys = {
    {"alpha", Kind::kNumber},
    {"attention_factor", Kind::kNumber},
    {"attn_factor", Kind::kNumber},
    {"beta_fast", Kind::kNumber},
    {"beta_slow", Kind::kNumber},
    {"extrapolation_factor", Kind::kNumber},
    {"factor", Kind::kNumber},
    {"freq_allocation", Kind::kCount},
    {"high_freq_factor", Kind::kNumber},
    {"inv_freq", Kind::kFactors},
    {"long_factor", Kind::kFactors},
    {"low_freq_factor", Kind::kNumber},
    {"mixed_b", Kind::kNumber},
    {"mrope_interleaved", Kind::kFlag},
    {"mrope_section", Kind::kSections},
    {"mscale", Kind::kNumber},
    {"mscale_all_dim", Kind::kNumber},
    {"original_max_position_embeddings", Kind::kLength},
    {"partial_rotary_factor", Kind::kFraction},
    {"rope_theta", Kind::kTheta},
    {"rotary_dim", Kind::kDim},
    {"rotary_offset", Kind::kCount},
    {"short_factor", Kind::kFactors},
    {"truncate", Kind::kFlag},
};

std::string ConfigWriter::List(uint64_t count, Kind kind) {
  std::string values;
  for (uint64_t i = 0; i < count; ++i) Append(Value(kind), values);
  return absl::StrCat("[", values, "]");
}

std::string ConfigWriter::Legal(Kind kind) {
  const auto pairs = static_cast<uint64_t>(dim_) / 2;
  switch (kind) {
    case Kind::kDim:
      return absl::StrCat(dim_);
    case Kind::kLength:
      return absl::StrCat(random_.OneOf({64, 512, 4096, 131072, 1 << 30}));
    case Kind::kCount:
      return absl::StrCat(random_.Below(9));
    case Kind::kLayers:
      return absl::StrCat(layers_);
    case Kind::kPeriod:
      return absl::StrCat(1 + random_.Below(6));
    case Kind::kNumber:
      return random_.OneOf<const char*>({"0.1", "1", "1.0", "4", "8.0", "32", "0.707", "1e3"});
    case Kind::kTheta:
      return random_.OneOf<const char*>({"10000", "10000.0", "500000", "1e6", "1.5"});
    case Kind::kFraction:
      return random_.OneOf<const char*>({"1", "1.0", "0.5", "0.25", "0.75"});
    case Kind::kFlag:
      return random_.OneIn(2) ? "true" : "false";
    case Kind::kRopeType:
      return Quoted(random_.OneOf<std::string_view>(
          {"default", "linear", "dynamic", "ntk", "yarn", "longrope", "su", "llama3",
           "proportional", "mrope", "ernie_3d", "deepseek_yarn", "other"}));
    case Kind::kModelType:
      return Quoted(kModelTypes[random_.Below(std::size(kModelTypes))]);
    case Kind::kFactors:
      return List(pairs, Kind::kNumber);
    case Kind::kSections: {
      const uint64_t t = random_.Below(pairs + 1);
      const uint64_t h = random_.Below(pairs - t + 1);
      return absl::StrCat("[", t, ", ", h, ", ", pairs - t - h, "]");
    }
    case Kind::kLayerTypes: {
      std::string types;
      for (int64_t i = 0; i < layers_; ++i) {
        Append(Quoted(random_.OneOf<std::string_view>(
                   {"full_attention", "sliding_attention", "linear_attention", "other"})),
               types);
      }
      return absl::StrCat("[", types, "]");
    }
    case Kind::kLayerFlags: {
      std::string flags;
      for (int64_t i = 0; i < layers_; ++i) Append(random_.OneIn(2) ? "0" : "1", flags);
      return absl::StrCat("[", flags, "]");
    }
    case Kind::kPattern:
      return random_.OneIn(2) ? absl::StrCat(1 + random_.Below(6)) : "\"LLG\"";
  }
  return "null";
}

std::string ConfigWriter::Value(Kind kind) {
  if (random_.OneIn(40)) return AnyValue(0);
  if (kind <= kLastNumber && random_.OneIn(60)) return HugeNumber();
  return Legal(kind);
}

std::string ConfigWriter::HugeNumber() {
  return random_.OneOf<const char*>({"65537", "2147483648", "1000000000000", "9007199254740993",
                                     "9223372036854775807", "-9223372036854775808",
                                     "9223372036854774784.0", "18446744073709551615", "1e18",
                                     "-1e18", "1e300", "-1e300"});
}

std::string ConfigWriter::AnyNumber() {
  switch (random_.Below(8)) {
    case 0:
      return absl::StrCat(random_.EdgeInteger());
    case 1:
      return absl::StrCat(random_.Integer(), ".", random_.Below(1000));
    case 2:
      return absl::StrCat(random_.Below(10), "e", static_cast<int64_t>(random_.Below(800)) - 400);
    case 3:
      return absl::StrCat("-", random_.Below(10), "e-", random_.Below(400));
    case 4:
      return std::string(1 + random_.Below(400), '9');
    case 5:
      return absl::StrCat("0.", std::string(random_.Below(400), '0'), "1");
    case 6:  // invalid JSON
      return random_.OneOf<const char*>({"NaN", "Infinity", "-Infinity", "01", "1.", ".5", "0x10"});
    default:
      return absl::StrCat(random_.Below(300));
  }
}

std::string ConfigWriter::AnyValue(int depth) {
  constexpr int kDepthMax = 4;
  switch (random_.Below(depth == kDepthMax ? 5 : 8)) {
    case 0:
      return "null";
    case 1:
      return random_.OneIn(2) ? "true" : "false";
    case 2:
      return random_.OneOf<const char*>({"\"\"", "\"yarn\"", "\"128\"", "\"\\ud800\"",
                                         "\"\\u0000\"", "\"\xc3\xa9\"", "\"\xff\"",
                                         "\"\\n\\u2028\""});
    case 3:
      return Legal(static_cast<Kind>(random_.Below(16)));
    case 4:
      return AnyNumber();
    case 5: {
      std::string values;
      for (uint64_t n = random_.Below(5); n > 0; --n) Append(AnyValue(depth + 1), values);
      return absl::StrCat("[", values, "]");
    }
    case 6:
      return Object(Field("factor", AnyValue(depth + 1)));
    default: {
      const uint64_t deep = random_.OneIn(16) ? 5000 : random_.Below(40);
      const std::string open(deep, '[');
      return absl::StrCat(open, random_.OneIn(4) ? "" : std::string(deep, ']'));
    }
  }
}

std::string ConfigWriter::Field(std::string_view name, const std::string& value) {
  return absl::StrCat(Quoted(name), ": ", value);
}

std::string ConfigWriter::Fields(const std::vector<Key>& keys, uint64_t one_in) {
  std::string fields;
  for (const Key& key : keys) {
    if (random_.OneIn(one_in)) Append(Field(key.name, Value(key.kind)), fields);
  }
  if (random_.OneIn(16))
    Append(Field(random_.OneOf(keys).name, AnyValue(0)), fields);  // sometimes a duplicate key
  if (random_.OneIn(16)) Append(Field("of_another_reader", AnyValue(0)), fields);
  return fields;
}

std::string ConfigWriter::Scaling() {
  std::string fields = Fields(kScalingKeys, 4);
  if (!random_.OneIn(4)) Append(Field("rope_type", Value(Kind::kRopeType)), fields);
  if (random_.OneIn(4)) Append(Field("type", Value(Kind::kRopeType)), fields);
  return fields;
}

// One value for all layers, or one for each layer type.
std::string ConfigWriter::Parameters() {
  if (!random_.OneIn(4)) return Object(Scaling());
  std::string types;
  for (const std::string_view type : {"full_attention", "sliding_attention", "other"}) {
    if (!random_.OneIn(3)) Append(Field(type, Object(Scaling())), types);
  }
  if (random_.OneIn(8)) Append(NullTypes(), types);
  return Object(types);
}

// Layer types without an embedding, as many as a file may have and more.
std::string ConfigWriter::NullTypes() {
  std::string types;
  for (uint64_t i = random_.OneOf<uint64_t>({1, 61, 63, 64, 65, 1000}); i > 0; --i) {
    Append(Field(absl::StrCat("_type_", i), "null"), types);
  }
  return types;
}

std::string ConfigWriter::PerLayer() {
  std::string layers;
  for (int64_t i = 0; i < std::min<int64_t>(layers_, 8); ++i) {
    if (random_.OneIn(2)) Append(Field(absl::StrCat(i), Object(Fields(kModelKeys, 12))), layers);
  }
  return Object(layers);
}

std::string ConfigWriter::Model() {
  std::string fields = Fields(kModelKeys, 6);
  if (random_.OneIn(16)) Append(Field("per_layer_config", PerLayer()), fields);
  if (random_.OneIn(2)) Append(Field("rope_scaling", Parameters()), fields);
  if (random_.OneIn(3)) Append(Field("rope_parameters", Parameters()), fields);
  if (random_.OneIn(16)) Append(Scaling(), fields);
  return fields;
}

std::string ConfigWriter::NewText() {
  dim_ = random_.OneOf<int64_t>({2, 8, 8, 64, 128});
  layers_ = random_.OneIn(64) ? 70000 : static_cast<int64_t>(1 + random_.Below(8));
  if (random_.OneIn(16)) return Object(Scaling());  // a fragment
  std::string fields = Model();
  if (random_.OneIn(4)) Append(Field("text_config", Object(Model())), fields);
  if (random_.OneIn(8)) Append(Field("vision_config", Object(Model())), fields);
  std::string text = Object(fields);
  if (random_.OneIn(10)) random_.Damage(text);
  return random_.OneIn(200) ? AnyValue(0) : text;
}

std::string ConfigWriter::Changed(std::string text) {
  for (uint64_t n = random_.Below(4); n > 0; --n) {
    const size_t colon = text.find(':', random_.Below(text.size() + 1));
    if (colon == std::string::npos) continue;
    const size_t end = std::min(text.find_first_of(",}\n", colon), text.size());
    text.replace(colon + 1, end - colon - 1,
                 random_.OneIn(2) ? AnyNumber() : AnyValue(/*depth=*/2));
  }
  if (random_.OneIn(3)) random_.Damage(text);
  return text;
}

}  // namespace rope::testing
