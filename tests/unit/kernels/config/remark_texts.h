// TextsOf: the sentences of remarks, for matchers of strings.
#ifndef ROPE_TESTS_UNIT_KERNELS_CONFIG_REMARK_TEXTS_H_
#define ROPE_TESTS_UNIT_KERNELS_CONFIG_REMARK_TEXTS_H_

#include <string>
#include <vector>

#include "kernels/config/remark.h"

namespace rope::testing {

inline std::vector<std::string> TextsOf(const std::vector<kernels::Remark>& remarks) {
  std::vector<std::string> texts;
  for (const kernels::Remark& remark : remarks) texts.push_back(remark.text);
  return texts;
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_UNIT_KERNELS_CONFIG_REMARK_TEXTS_H_
