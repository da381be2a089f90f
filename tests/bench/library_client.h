// The client library for benchmark rows.
//
// Threading:  Functions only.
#ifndef ROPE_TESTS_BENCH_LIBRARY_CLIENT_H_
#define ROPE_TESTS_BENCH_LIBRARY_CLIENT_H_

#include <cstdint>
#include <string>

#include "rope/client.h"

namespace rope::bench {

// Exits the program with the reason if it cannot connect.
client::Client ConnectClient(const std::string& target, const client::ConnectOptions& options = {});

// A request for `tokens` decode tokens at `input`, with results at `output`.
client::RotateRequest LibraryRequest(int64_t tokens, const void* input, void* output);

// `whole` as a call of the rotation that was prepared from it, and that call of a new rotation.
client::RotateRequest CallOf(const client::PreparedRotation& rotation,
                             const client::RotateRequest& whole);
client::RotateRequest Prepared(const client::Client& client, const client::RotateRequest& whole);

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_LIBRARY_CLIENT_H_
