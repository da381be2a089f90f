// Reads Prometheus' text format as strictly as Prometheus does.
#ifndef ROPE_TESTS_SUPPORT_EXPOSITION_H_
#define ROPE_TESTS_SUPPORT_EXPOSITION_H_

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace rope::testing {

// Parsing adds a test failure for whatever is wrong in `text`.
//
// Threading:  One thread.
class Exposition {
 public:
  explicit Exposition(const std::string& text) {
    EXPECT_TRUE(absl::EndsWith(text, "\n"));
    const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
    for (const std::string& line : lines) {
      if (absl::StartsWith(line, "# HELP ")) {
        TakeHelp(line);
      } else if (absl::StartsWith(line, "# TYPE ")) {
        TakeType(line);
      } else {
        TakeSample(line);
      }
    }
    for (const auto& [name, type] : types_) {
      if (type == "histogram") CheckHistogram(name);
    }
  }

  // The value of a sample by its full name, name{label="value",...}; -1: no such sample.
  double Value(const std::string& sample) const {
    const auto found = samples_.find(sample);
    return found == samples_.end() ? -1 : found->second;
  }
  const std::map<std::string, double>& samples() const { return samples_; }
  // "counter", "gauge", "histogram" or "summary" of each family.
  const std::map<std::string, std::string>& types() const { return types_; }
  const std::map<std::string, std::string>& helps() const { return helps_; }

 private:
  void TakeHelp(const std::string& line) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
    ASSERT_EQ(words.size(), 4U) << line;
    EXPECT_TRUE(helps_.emplace(words[2], words[3]).second) << "twice: " << line;
    EXPECT_FALSE(words[3].empty()) << line;
  }
  void TakeType(const std::string& line) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    ASSERT_EQ(words.size(), 4U) << line;
    EXPECT_TRUE(helps_.contains(words[2])) << "no HELP before " << line;
    EXPECT_TRUE(types_.emplace(words[2], words[3]).second) << "twice: " << line;
    family_ = words[2];
  }
  // Samples must follow the TYPE line of their family.
  void TakeSample(const std::string& line) {
    const size_t space = line.rfind(' ');
    ASSERT_NE(space, std::string::npos) << line;
    const std::string sample = line.substr(0, space);
    std::string name = sample.substr(0, sample.find('{'));
    if (types_[family_] == "histogram" || types_[family_] == "summary") {
      for (const char* suffix : {"_bucket", "_sum", "_count"}) {
        if (name == family_ + suffix) name = family_;
      }
    }
    EXPECT_EQ(name, family_) << line;
    double value = 0;
    ASSERT_TRUE(absl::SimpleAtod(line.substr(space + 1), &value)) << line;
    EXPECT_TRUE(samples_.emplace(sample, value).second) << "twice: " << line;
    in_order_.emplace_back(sample, value);
  }
  // For each set of labels: bounds ascend, counts do not fall, +Inf exists and equals _count.
  void CheckHistogram(const std::string& name) {
    double last_bound = -1;
    double last_count = 0;
    int ended = 0;
    for (const auto& [sample, value] : in_order_) {
      if (!absl::StartsWith(sample, name + "_bucket{")) continue;
      const size_t le = sample.find("le=\"");
      ASSERT_NE(le, std::string::npos) << sample;
      const std::string bound_text = sample.substr(le + 4, sample.find('"', le + 4) - le - 4);
      double bound = std::numeric_limits<double>::infinity();
      if (bound_text != "+Inf") {
        EXPECT_TRUE(absl::SimpleAtod(bound_text, &bound)) << sample;
      }
      EXPECT_GT(bound, last_bound) << sample;
      EXPECT_GE(value, last_count) << sample;
      last_bound = bound;
      last_count = value;
      if (bound_text != "+Inf") continue;
      std::string labels = sample.substr(name.size() + 7);  // {...,le="+Inf"}
      labels = labels == "{le=\"+Inf\"}"
                   ? ""
                   : absl::StrCat(absl::StripSuffix(labels, ",le=\"+Inf\"}"), "}");
      EXPECT_EQ(Value(absl::StrCat(name, "_count", labels)), value) << sample;
      EXPECT_GE(Value(absl::StrCat(name, "_sum", labels)), 0) << sample;
      last_bound = -1;
      last_count = 0;
      ++ended;
    }
    EXPECT_GT(ended, 0) << name;
    EXPECT_EQ(last_bound, -1) << name << " ends without +Inf";
  }

  std::map<std::string, std::string> helps_;
  std::map<std::string, std::string> types_;
  std::map<std::string, double> samples_;
  std::vector<std::pair<std::string, double>> in_order_;
  std::string family_;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_EXPOSITION_H_
