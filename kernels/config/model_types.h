// What is known of models by their names. Internal to config_json.
//
// Threading:  Pure functions; any thread.
#ifndef ROPE_KERNELS_CONFIG_MODEL_TYPES_H_
#define ROPE_KERNELS_CONFIG_MODEL_TYPES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/config/json_fields.h"
#include "kernels/config/remark.h"
#include "kernels/config/rope_config.h"
#include "kernels/dtype/dtype.h"

namespace rope::kernels {

// A list of keys.json. REQUIRES: there is one of that name.
const std::vector<std::string>& KeyList(std::string_view name);
// Words of keys.json: by key, another name of it or what is said of it. REQUIRES: as KeyList.
const std::map<std::string, std::string, std::less<>>& WordsOf(std::string_view name);

// Whether `object` has a value for `key`. A null value counts as absent.
bool HasValue(const nlohmann::json& object, std::string_view key);

// Whether `config` has a key of rope parameters.
bool StatesParameters(const nlohmann::json& config);

// Whether a value of `block` is an object: parameters by layer type.
bool HasObjects(const nlohmann::json& block);

// The model_type of `config`. Empty if absent, or if no model has so long a name.
std::string_view OwnTypeOf(const nlohmann::json& config);

// What the code of a model without rotary embedding has in its place: "learned positions". Empty:
// the model rotates, or is not known.
std::string_view PositionsInsteadOfRope(std::string_view model_type, const JsonFields& model);

// Adds a remark if nothing is known of `model_type`, or if its code is in the model's repository,
// and one for each key of `model` by which such code changes the rotation.
void RemarkModel(std::string_view model_type, const JsonFields& model,
                 std::vector<Remark>& remarks);

// What is known of a model_type: facts of its model's code that a config.json does not state. The
// facts are data, one entry per model_type, in model_types.json.
//
// How to add a model_type: README.md, "How to add".

// How the frequencies of a head of d channels are given to the axes of an image (rope_type axial).
// h is the row of a patch, w its column; n = d/4.
enum class AxialGrid {
  kHW,             // n of h, then n of w, each theta^(-2i/(2n))
  kWH,             // as kHW, w first
  kWHAlternating,  // as kHW, but w and h alternate
  kHWAlternating,  // h and w alternate over the head's frequencies; with every rope_type
  kHWFrequencies,  // h has the even of theta^(-2i/d), w the odd ones
  kTHW,            // floor(d/6) each of t, h and w; the other channels do not turn
};

// A list with one element per layer, which a config class makes by a rule: the first layers, the
// last ones, and a pattern that repeats from layer 0 on, or from the last layer backwards.
struct LayerRule {
  std::vector<std::string> first = {};
  std::vector<std::string> repeat = {};
  std::vector<std::string> last = {};
  bool backward = false;

  bool empty() const { return repeat.empty(); }
  // REQUIRES: not empty; 0 <= layer < count.
  const std::string& operator()(int64_t layer, int64_t count) const;
};

// Which blocks of rope parameters a config class keeps.
enum class BlockRule {
  kOne,              // rope_scaling if it is there, else rope_parameters
  kAsIs,             // the same, without a look at the keys beside it
  kParametersOnly,   // rope_parameters, which must be complete
  kFilled,           // rope_parameters, with what each layer type lacks
  kOnFull,           // rope_scaling joins the full_attention of rope_parameters
  kOnBoth,           // it joins all layer types
  kByLayer,          // the base and the fraction may be lists, with an element for each layer
  kMainAndCompress,  // rope_scaling is that of the layers that compress
};

struct ModelType {
  std::string positions;         // what the code has in place of a rotation; empty: it rotates
  bool of_transformers = false;  // it has a config class there
  BlockRule blocks = BlockRule::kOne;
  bool by_layer_type = false;  // the code wants an object of parameters for each layer type
  std::vector<std::string> rope_types;  // those that the class knows; empty: the usual ones
  // By block, a key without which its parameters do not fit the model.
  std::map<std::string, std::string> needs;
  // The keys beside the block that the class reads.
  std::vector<std::string> reads = {"rope_theta", "partial_rotary_factor"};
  bool whole_heads = false;  // in rope_type default the code does not read partial_rotary_factor
  // The base that the class of transformers 4 has without a key rope_theta.
  std::optional<double> theta_4;
  std::optional<Pairing> pairing;  // of the checkpoint's q and k
  // The channel order in which the model's code leaves interleaved pairs, if it is another one.
  std::optional<Pairing> channel_order;
  bool reverse = false;          // the code turns by minus the angle
  bool trailing_window = false;  // the last channels of a head turn
  std::optional<AxialGrid> axial;
  // The order of the three axes and the counts that the code uses without mrope_section.
  std::optional<Mrope::Layout> mrope_layout;
  std::optional<std::array<int64_t, 3>> mrope_section;
  // Keys that this config class spells differently: {key of this reader, key of the file}.
  std::map<std::string, std::string> names;
  // The key of the size of all heads, if it is not hidden_size.
  std::string width;
  // qk_rope_head_dim counts the channels of head_dim that turn; elsewhere these are a head alone.
  bool rope_in_head = false;
  // The types of the layers of a file that states none, and which of them rotate ("rope", "none").
  LayerRule layers;
  LayerRule rope_layers;
  // How often the code runs its layers, each time with a cache of its own. {"of": the key of the
  // layers, "unless": the key of a file that has counted, "by": {key: [default, addend]}}.
  nlohmann::json repeats;
  bool attention_and_mlp = false;  // files may count attention and mlp as two layers
  // The rope parameters that a layer type uses, if they stand under another name.
  std::map<std::string, std::string, std::less<>> parameters_of;
  // No layer rotates, unless the file (or a default) has this value for this key.
  std::pair<std::string, nlohmann::json> rotates_if;
  // The code reads layer_rope_theta as a mark of the layers that rotate, all with rope_theta.
  bool thetas_only_mark = false;
  // Layers of these types do not rotate, if the file has the key `no_rope_needs` (empty: always).
  std::vector<std::string> no_rope_layer_types;
  std::string no_rope_needs;
  // The scaling of a file with one set of parameters applies to full-attention layers only.
  bool sliding_layers_unscaled = false;
  std::optional<LongropeBranch> longrope_branch;  // the only list that the code uses
  // partial_rotary_factor is a fraction of the sum of these keys, instead of head_dim.
  std::vector<std::string> partial_rotary_factor_of;
  // The key of which the code takes 10000 times the value for the base, and 10000 where it is
  // absent. It reads neither rope_theta nor a scaling.
  std::string theta_ratio;
  std::string unsupported;        // the reason why this rotation is refused; empty if it is not
  std::string unsupported_if;     // the key that is true in the files it is refused of; empty: all
  std::string mrope_unsupported;  // the same for mrope_section
  // Values that Hugging Face's config class gives to absent keys, by key.
  nlohmann::json defaults = nlohmann::json::object();
  std::string source;  // the project, its version and its file
};

// The longest name; every layer keeps a copy.
inline constexpr size_t kModelTypeBytesMax = 128;

// The entry of `model_type`. A composite model ("gemma3") has the entry of its text model
// ("gemma3_text"), and the other way round. An unknown type has an empty entry.
const ModelType& ModelTypeOf(std::string_view model_type);

// Why the rotation of `model`, which is of `type`, is refused; empty: it is not.
std::string_view WhyUnsupported(const ModelType& type, const nlohmann::json& model);

// Whether `model_type` itself has an entry.
bool HasModelType(std::string_view model_type);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_MODEL_TYPES_H_
