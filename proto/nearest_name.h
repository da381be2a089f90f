// The name that was probably meant, for errors about unknown names: flags, commands, models.
//
// Threading:  Pure functions; any thread.
// Cost:       The product of the lengths for each candidate whose length is near; bound both.
#ifndef ROPE_PROTO_NEAREST_NAME_H_
#define ROPE_PROTO_NEAREST_NAME_H_

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rope::proto {

// Levenshtein's distance: insertions, deletions and replacements of one character.
inline size_t Edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

// The first of the names that are the fewest edits away: at most two, or a third of the name's
// length. Empty: none is.
inline std::string NearestName(std::string_view name, const std::vector<std::string>& names) {
  std::string nearest;
  size_t fewest = std::max(size_t{2}, name.size() / 3) + 1;
  for (const std::string& candidate : names) {
    const size_t longer = std::max(name.size(), candidate.size());
    const size_t shorter = std::min(name.size(), candidate.size());
    if (longer - shorter >= fewest) continue;  // as many edits at least
    const size_t edits = Edits(name, candidate);
    if (edits >= fewest) continue;
    fewest = edits;
    nearest = candidate;
  }
  return nearest;
}

// For names of models, of which another number is another model: up to three names that begin with
// `name` and go on with neither a digit nor a point; else the nearest one with the same digits.
inline std::vector<std::string> NearestModels(std::string_view name,
                                              const std::vector<std::string>& names) {
  constexpr size_t kNamed = 3;
  constexpr std::string_view kDigits = "0123456789";
  const auto digits = [&](std::string_view text) {
    std::string found;
    for (const char c : text) {
      if (kDigits.find(c) != std::string_view::npos) found += c;
    }
    return found;
  };
  std::vector<std::string> nearest;
  std::vector<std::string> alike;
  for (const std::string& candidate : names) {
    if (digits(candidate) == digits(name)) alike.push_back(candidate);
    const bool longer = !name.empty() && candidate.size() > name.size();
    if (!longer || !candidate.starts_with(name) || nearest.size() == kNamed) continue;
    const char next = candidate[name.size()];
    if (next != '.' && kDigits.find(next) == std::string_view::npos) nearest.push_back(candidate);
  }
  if (!nearest.empty()) return nearest;
  std::string one = NearestName(name, alike);
  if (!one.empty()) nearest.push_back(std::move(one));
  return nearest;
}

// The end of an error: "; did you mean NAME?". Empty for an empty name.
inline std::string DidYouMean(const std::string& nearest) {
  return nearest.empty() ? std::string() : "; did you mean " + nearest + "?";
}

}  // namespace rope::proto

#endif  // ROPE_PROTO_NEAREST_NAME_H_
