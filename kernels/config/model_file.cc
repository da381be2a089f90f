#include "kernels/config/model_file.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "kernels/config/gguf_config.h"
#include "kernels/config/gguf_header.h"
#include "kernels/config/json_fields.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

constexpr uint64_t kJsonBytesMax = 16 << 20;

absl::StatusOr<std::string> ReadBytes(const ByteSource& source, uint64_t count) {
  std::string bytes(static_cast<size_t>(std::min(count, source.size())), '\0');
  ROPE_RETURN_IF_ERROR(source.Read(0, absl::MakeSpan(bytes.data(), bytes.size())));
  return bytes;
}

absl::StatusOr<ModelConfig> ReadJson(const ByteSource& source, std::string_view sub_config) {
  ROPE_ASSIGN_OR_RETURN(const std::string start, ReadBytes(source, kGgufMagic.size()));
  const size_t first = start.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && start[first] != '{') {
    return InvalidField("file", StrCat(ShowText(start), " at the start"),
                        "\"GGUF\" or a JSON object");
  }
  if (source.size() > kJsonBytesMax) {
    return InvalidField("file", StrCat(source.size(), " bytes of JSON"),
                        StrCat("at most ", kJsonBytesMax));
  }
  ROPE_ASSIGN_OR_RETURN(const std::string text, ReadBytes(source, kJsonBytesMax));
  return ModelConfig::Parse(text, sub_config);
}

absl::StatusOr<bool> IsGguf(const ByteSource& source) {
  ROPE_ASSIGN_OR_RETURN(const std::string start, ReadBytes(source, kGgufMagic.size()));
  return start == kGgufMagic;
}

// The path of part `number`, from 1, of a model whose first part is at `path`. Empty if the name
// does not end as llama.cpp names parts: "-00001-of-00003.gguf".
std::string PathOfPart(const std::string& path, int64_t number, int64_t parts) {
  const std::string first = absl::StrFormat("-%05d-of-%05d.gguf", 1, parts);
  if (!path.ends_with(first)) return "";
  return absl::StrFormat("%s-%05d-of-%05d.gguf", path.substr(0, path.size() - first.size()), number,
                         parts);
}

// Takes the rope tensors from the first other part that has one. A part that cannot be read ends
// the search; ReadGgufConfig warns of it.
void AddTensorsOfParts(const std::string& path, GgufHeader& header) {
  const absl::StatusOr<int64_t> parts = GgufPartsOf(header);
  if (!parts.ok()) return;  // ReadGgufConfig returns the error
  for (int64_t number = 2; number <= *parts && header.tensors.empty(); ++number) {
    const auto source = FileSource::Open(PathOfPart(path, number, *parts));
    if (!source.ok()) return;
    absl::StatusOr<GgufHeader> part = ReadGgufHeader(**source);
    if (!part.ok()) return;
    header.tensors = std::move(part->tensors);
  }
  header.all_parts = true;
}

absl::StatusOr<ModelConfig> ReadOpened(const std::string& path, const ByteSource& source,
                                       std::string_view sub_config) {
  ROPE_ASSIGN_OR_RETURN(const bool gguf, IsGguf(source));
  if (!gguf) return ReadJson(source, sub_config);
  if (!sub_config.empty()) {
    return InvalidField("sub_config", Show(std::string(sub_config)),
                        "no sub_config: a GGUF file has none");
  }
  ROPE_ASSIGN_OR_RETURN(GgufHeader header, ReadGgufHeader(source));
  AddTensorsOfParts(path, header);
  return ReadGgufConfig(header);
}

}  // namespace

absl::StatusOr<ModelConfig> ReadModel(const ByteSource& source) {
  ROPE_ASSIGN_OR_RETURN(const bool gguf, IsGguf(source));
  if (!gguf) return ReadJson(source, "");
  ROPE_ASSIGN_OR_RETURN(const GgufHeader header, ReadGgufHeader(source));
  return ReadGgufConfig(header);
}

absl::StatusOr<ModelConfig> ReadModelFile(const std::string& path, std::string_view sub_config) {
  ROPE_ASSIGN_OR_RETURN(const std::unique_ptr<FileSource> source, FileSource::Open(path));
  absl::StatusOr<ModelConfig> model = ReadOpened(path, *source, sub_config);
  if (model.ok()) return model;
  return proto::Prefixed(StrCat(path, ": "), model.status());
}

}  // namespace rope::kernels
