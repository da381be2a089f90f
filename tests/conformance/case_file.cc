#include "tests/conformance/case_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace rope::testing {
namespace {

namespace fs = std::filesystem;

const fs::path kCases = fs::path(ROPE_SOURCE_DIR) / "tests/conformance/cases";

}  // namespace

std::vector<Paragraph> ReadCases(const std::string& file) {
  std::vector<Paragraph> paragraphs;
  std::ifstream in(kCases / file);
  bool inside = false;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (!line.empty() && !inside) paragraphs.push_back({.number = number});
    inside = !line.empty();
    if (!inside) continue;
    Paragraph& paragraph = paragraphs.back();
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, "= ")) {
      paragraph.answers.emplace_back(rest);
      continue;
    }
    paragraph.lines.push_back(line);
    if (absl::ConsumePrefix(&rest, "? ")) {
      paragraph.shown.emplace_back(rest);
    } else if (line[0] != '#') {
      paragraph.text.push_back(line);
    }
  }
  return paragraphs;
}

std::vector<std::string> CaseFiles(const std::string& folder) {
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(kCases / folder)) {
    if (entry.path().extension() != ".txt") continue;
    files.push_back(fs::path(folder) / entry.path().filename());
  }
  std::ranges::sort(files);
  return files;
}

void PlayCases(const std::string& file, const AnswerTo& answer_to) {
  const char* const folder = std::getenv("ROPE_RECORD");
  std::vector<std::string> written;
  int count = 0;
  for (const Paragraph& paragraph : ReadCases(file)) {
    SCOPED_TRACE(absl::StrCat(file, ":", paragraph.number));
    if (!written.empty()) written.emplace_back();
    written.insert(written.end(), paragraph.lines.begin(), paragraph.lines.end());
    if (paragraph.text.empty() && paragraph.shown.empty() && paragraph.answers.empty()) continue;
    const auto answers = answer_to(paragraph);
    if (!answers.has_value()) continue;
    for (const std::string& answer : *answers) written.push_back("= " + answer);
    ++count;
    if (folder != nullptr) continue;
    EXPECT_EQ(absl::StrJoin(*answers, "\n"), absl::StrJoin(paragraph.answers, "\n"));
  }
  std::printf("measured: cases: %s: %d\n", file.c_str(), count);
  EXPECT_GT(count, 0);
  if (folder == nullptr) return;
  const fs::path target = fs::path(folder) / "cases" / file;
  fs::create_directories(target.parent_path());
  std::ofstream(target) << absl::StrJoin(written, "\n") << "\n";
}

std::optional<std::string> ConfigTexts::TextOf(const std::vector<std::string>& lines) {
  const std::string text = absl::StrJoin(lines, "\n");
  absl::string_view first = text;
  first = first.substr(0, first.find('\n'));
  const bool makes = absl::ConsumePrefix(&first, "base ");
  if (!makes && !absl::ConsumePrefix(&first, "on ")) {
    return absl::StrReplaceAll(bases_.at(base_), {{"$", text}});
  }
  base_ = std::string(first);
  if (makes) bases_[base_] = text.substr(text.find('\n') + 1);
  return std::nullopt;
}

}  // namespace rope::testing
