// Exact cos and sin for programs that rotate with kernels of their own. proto/rope/v1/tables.proto
// documents every range and error.
//
// Threading:  Values.
#ifndef ROPE_TABLES_H_
#define ROPE_TABLES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rope/config.h"
#include "rope/tensor.h"

namespace rope::client {

// Layouts of tables, with n = rotary_dim/2. Column i belongs to pair i, whatever the pairing.
enum class TableLayout {
  kCosSin,       // `cos` and `sin`, [rows, n] each (FlashAttention)
  kCosSinCache,  // `table`, [rows, 2n]: n cosines, then n sines (cos_sin_cache of vLLM and SGLang)
  kDuplicated,   // `cos` and `sin`, [rows, 2n]: the n numbers twice (Hugging Face's rotate_half)
  kComplex,      // `table`, [rows, n, 2]: cos and sin of each pair (view_as_real of freqs_cis)
};

// The positions of rows, in order: a range, or a list. Each is 0 to 2^30.
struct TablePositions {
  int64_t begin = 0;
  int64_t end = 0;                         // one past the last position
  std::vector<int64_t> position_ids = {};  // INVALID_ARGUMENT: set together with begin or end
};

// Rows that move rotated vectors from one position to another, or from one embedding to another.
struct TableReposition {
  TablePositions from = {};                // as many as there are rows
  std::optional<RopeSpec> from_rope = {};  // unset: the request's `rope`
  std::optional<int64_t> from_seq_len = {};
};

struct TablesRequest {
  RopeSpec rope = {};
  // At most 65,536 rows, and 16 MiB of tables. Ask for a part of a longer table at a time.
  TablePositions positions = {};
  std::optional<TableReposition> reposition = {};
  DType dtype = DType::kFloat32;  // kFloat32, kFloat16, kBFloat16 or kFloat64
  TableLayout layout = TableLayout::kCosSin;
  // Length for dynamic and longrope. Unset: the largest position + 1. Parts of one table need the
  // same length.
  std::optional<int64_t> seq_len = {};
  std::optional<int64_t> head_dim = {};  // required if the config does not contain it
  // True: the rows do not include the attention factor.
  bool skip_attention_factor = false;
  std::optional<Role> role = {};  // only with xpos, whose rows differ; unset: kQ
};

// A packed, row-major array of little-endian numbers.
struct TableArray {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape = {};  // empty: the layout does not have this array
  std::vector<std::byte> data = {};
};

struct TablesReply {
  std::string config_id = {};  // as DescribeReply::config_id
  // The config's attention factor, applied or not. With a reposition: that of `rope` divided by
  // that of `from_rope`.
  double attention_factor = 0;
  bool attention_factor_applied = false;
  int64_t seq_len = 0;  // the sequence length for which the numbers hold
  bool depends_on_seq_len = false;
  std::vector<std::string> warnings = {};
  TableArray table = {};  // kCosSinCache, kComplex
  TableArray cos = {};    // kCosSin, kDuplicated
  TableArray sin = {};
};

}  // namespace rope::client

#endif  // ROPE_TABLES_H_
