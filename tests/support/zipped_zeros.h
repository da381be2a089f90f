// Zeros, compressed to a thousandth.
//
// Threading:  Functions only.
#ifndef ROPE_TESTS_SUPPORT_ZIPPED_ZEROS_H_
#define ROPE_TESTS_SUPPORT_ZIPPED_ZEROS_H_

#include <zlib.h>

#include <cstdint>
#include <string>

namespace rope::testing {

// `encoding`: "gzip" or "deflate", as gRPC names them.
inline std::string ZippedZeros(int64_t bytes, const std::string& encoding) {
  constexpr int kWindowBits = 15;
  constexpr int kGzip = 16;
  z_stream stream{};
  deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kWindowBits + (encoding == "gzip" ? kGzip : 0),
               /*memLevel=*/9, Z_DEFAULT_STRATEGY);
  std::string zeros(1 << 20, '\0');
  std::string zipped;
  std::string part(1 << 16, '\0');
  for (int64_t left = bytes; left > 0; left -= static_cast<int64_t>(zeros.size())) {
    stream.next_in = reinterpret_cast<Bytef*>(zeros.data());
    stream.avail_in = static_cast<uInt>(zeros.size());
    do {
      stream.next_out = reinterpret_cast<Bytef*>(part.data());
      stream.avail_out = static_cast<uInt>(part.size());
      deflate(&stream, left > static_cast<int64_t>(zeros.size()) ? Z_NO_FLUSH : Z_FINISH);
      zipped.append(part, 0, part.size() - stream.avail_out);
    } while (stream.avail_out == 0);
  }
  deflateEnd(&stream);
  return zipped;
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_ZIPPED_ZEROS_H_
