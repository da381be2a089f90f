// Files of cases: paragraphs, each with a text, facts to show ("? FACT") and the lines of its
// answer ("= LINE"). A line "# ..." is a comment.
#ifndef ROPE_TESTS_CONFORMANCE_CASE_FILE_H_
#define ROPE_TESTS_CONFORMANCE_CASE_FILE_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace rope::testing {

struct Paragraph {
  int number = 0;                       // of its first line
  std::vector<std::string> lines = {};  // as in the file, without the answer
  std::vector<std::string> text = {};   // of these, without facts and comments
  std::vector<std::string> shown = {};
  std::vector<std::string> answers = {};
};

// The files of a folder below conformance/cases, as "FOLDER/NAME.txt"; of "" as "NAME.txt".
std::vector<std::string> CaseFiles(const std::string& folder);

std::vector<Paragraph> ReadCases(const std::string& file);

// Compares each case of a file with its answer, or writes $ROPE_RECORD/cases/FILE with the present
// ones. `answer_to` gives the lines; nullopt: the paragraph is no case. It gets no comments.
using AnswerTo = std::function<std::optional<std::vector<std::string>>(const Paragraph&)>;
void PlayCases(const std::string& file, const AnswerTo& answer_to);

// The texts of cases/configs, each in the base that the paragraphs before it made or chose.
class ConfigTexts {
 public:
  // The config.json text of a case, whose lines these are without "with". nullopt: "base NAME" or
  // "on NAME".
  std::optional<std::string> TextOf(const std::vector<std::string>& lines);

 private:
  std::map<std::string, std::string> bases_ = {{"text", "$"}};
  std::string base_ = "text";
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_CONFORMANCE_CASE_FILE_H_
