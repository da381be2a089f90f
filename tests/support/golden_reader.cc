#include "tests/support/golden_reader.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace rope::testing {
namespace {

using Json = nlohmann::json;

absl::Status Invalid(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

void ReadMrope(const Json& json, GoldenCase& golden) {
  const Json& mrope = json.at("mrope");
  if (mrope.is_null()) return;
  golden.mrope.emplace();
  golden.mrope->section = mrope.at("section").get<std::array<int64_t, 3>>();
  golden.mrope->layout = mrope.at("layout").get<std::string>();
}

void ReadPositions(const Json& json, GoldenCase& golden) {
  const Json& positions = json.at("positions");
  if (!positions.empty() && positions.front().is_array()) {
    golden.positions = positions.get<std::vector<std::vector<int64_t>>>();
  } else {
    golden.positions = {positions.get<std::vector<int64_t>>()};
  }
}

// Throws nlohmann's exceptions; ReadGoldenFile turns them into a Status.
GoldenCase FromJson(const Json& json) {
  GoldenCase golden;
  json.at("name").get_to(golden.name);
  json.at("description").get_to(golden.description);
  json.at("tags").get_to(golden.tags);
  golden.config = json.at("config").dump();
  if (const Json& layer_type = json.at("layer_type"); !layer_type.is_null()) {
    layer_type.get_to(golden.layer_type);
  }
  json.at("rope_type").get_to(golden.rope_type);
  json.at("rope_theta").get_to(golden.rope_theta);
  json.at("head_dim").get_to(golden.head_dim);
  json.at("rotary_dim").get_to(golden.rotary_dim);
  json.at("pairing").get_to(golden.pairing);
  ReadMrope(json, golden);
  json.at("num_heads").get_to(golden.num_heads);
  json.at("num_kv_heads").get_to(golden.num_kv_heads);
  json.at("num_tokens").get_to(golden.num_tokens);
  json.at("seq_len").get_to(golden.seq_len);
  ReadPositions(json, golden);
  json.at("attention_factor").get_to(golden.attention_factor);
  json.at("inv_freq_f64").get_to(golden.inv_freq_f64);
  json.at("cos_f64").get_to(golden.cos_f64);
  json.at("sin_f64").get_to(golden.sin_f64);
  json.at("q").get_to(golden.q);
  json.at("k").get_to(golden.k);
  json.at("q_out_f64").get_to(golden.q_out_f64);
  json.at("k_out_f64").get_to(golden.k_out_f64);
  return golden;
}

bool SizesAgree(const GoldenCase& golden) {
  const auto tokens = static_cast<size_t>(golden.num_tokens);
  const size_t columns = static_cast<size_t>(golden.rotary_dim) / 2;
  const size_t q = tokens * static_cast<size_t>(golden.num_heads * golden.head_dim);
  const size_t k = tokens * static_cast<size_t>(golden.num_kv_heads * golden.head_dim);
  return (golden.positions.size() == (golden.mrope.has_value() ? 3u : 1u)) &&
         std::all_of(golden.positions.begin(), golden.positions.end(),
                     [&](const auto& row) { return row.size() == tokens; }) &&
         golden.inv_freq_f64.size() == columns && golden.cos_f64.size() == tokens * columns &&
         golden.sin_f64.size() == tokens * columns && golden.q.size() == q &&
         golden.q_out_f64.size() == q && golden.k.size() == k && golden.k_out_f64.size() == k;
}

}  // namespace

absl::StatusOr<GoldenCase> ReadGoldenFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Invalid(path, "got no JSON object");
  GoldenCase golden;
  try {
    if (json.at("format") != "rope-golden-1") return Invalid(path, "got another format");
    golden = FromJson(json);
  } catch (const Json::exception& error) {
    return Invalid(path, error.what());
  }
  if (!SizesAgree(golden)) return Invalid(path, "got an array of another length than its shape");
  return golden;
}

std::vector<std::string> GoldenFiles() {
  std::vector<std::string> paths;
  std::error_code error;
  const std::filesystem::path folder =
      std::filesystem::path(ROPE_SOURCE_DIR) / "tests/conformance/golden";
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace rope::testing
