// Rotates q and k of Llama 3.1 8B on a RopeServe server: in one request, a prompt of 512 tokens and
// one decode token of another sequence at position 100000. Then it checks every number in double,
// with the cos and sin that the server describes.
//
//   rope_quickstart [--target=HOST:PORT]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "rope/client.h"

namespace {

using rope::client::Client;
using rope::client::DescribeReply;
using rope::client::Role;

constexpr int64_t kPromptTokens = 512;
constexpr int64_t kDecodePosition = 100000;
constexpr int64_t kTokens = kPromptTokens + 1;
constexpr int64_t kHeads = 32;
constexpr int64_t kKvHeads = 8;
constexpr int64_t kHeadDim = 128;
constexpr double kTolerance = 1.5e-7;  // times attention factor * (|a| + |b|) of a pair

template <typename T>
T OrExit(rope::Result<T> result, const char* what) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "%s: %s\n", what, result.status().ToString().c_str());
  std::exit(1);
}

std::vector<float> RandomTensor(int64_t heads) {
  static std::minstd_rand generator(1);
  std::normal_distribution<float> distribution;
  std::vector<float> values(static_cast<size_t>(kTokens * heads * kHeadDim));
  for (float& value : values) value = distribution(generator);
  return values;
}

struct Error {
  double largest = 0;
  double over_tolerance = 0;  // largest error / tolerance

  void Add(double got, double want, double tolerance) {
    // Written so that a NaN counts as an error.
    const double error = std::isfinite(got) ? std::abs(got - want) : HUGE_VAL;
    largest = std::max(largest, error);
    if (error > 0) over_tolerance = std::max(over_tolerance, error / tolerance);
  }
};

// Rotates in double with the server's rows: channels i and i + head_dim/2 form a pair.
void Check(const DescribeReply& described, const std::vector<float>& input,
           const std::vector<float>& output, Error& error) {
  constexpr size_t kHalf = kHeadDim / 2;
  const size_t token_channels = input.size() / kTokens;
  for (size_t head = 0; head < input.size(); head += kHeadDim) {
    const rope::client::Row& row = described.rows[head / token_channels];
    for (size_t i = 0; i < kHalf; ++i) {
      const double a = input[head + i];
      const double b = input[head + i + kHalf];
      const double tolerance =
          kTolerance * described.attention_factor * (std::abs(a) + std::abs(b));
      error.Add(output[head + i], a * row.cos[i] - b * row.sin[i], tolerance);
      error.Add(output[head + i + kHalf], b * row.cos[i] + a * row.sin[i], tolerance);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string target = "127.0.0.1:50051";
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool help = argument == "-h" || argument == "--help";
    if (argument.rfind("--target=", 0) != 0) {
      std::fprintf(help ? stdout : stderr, "usage: rope_quickstart [--target=HOST:PORT]\n");
      return help ? 0 : 2;
    }
    target = argument.substr(argument.find('=') + 1);
  }
  const Client client = OrExit(Client::Connect(target), "connect");

  const std::vector<float> q = RandomTensor(kHeads);
  const std::vector<float> k = RandomTensor(kKvHeads);
  std::vector<float> q_rotated(q.size());
  std::vector<float> k_rotated(k.size());
  // Once what stays the same; then each call brings its positions and memory.
  rope::client::RotateRequest request{.rope = {.model = "llama-3.1-8b"}};
  request.tensors = {{.layout = "THD", .shape = {kTokens, kHeads, kHeadDim}},
                     {.role = Role::kK, .layout = "THD", .shape = {kTokens, kKvHeads, kHeadDim}}};
  rope::client::RotateRequest call{.prepared = OrExit(client.Prepare(request), "prepare")};
  call.positions.cu_seqlens = {0, kPromptTokens, kTokens};  // two sequences
  call.positions.starts = {0, kDecodePosition};             // and their first positions
  call.tensors = {{.data = q.data(), .output = q_rotated.data()},
                  {.data = k.data(), .output = k_rotated.data()}};

  std::vector<double> milliseconds;
  rope::client::RotateReply reply;
  for (int i = 0; i < 11; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    reply = OrExit(client.Rotate(call), "rotate");
    milliseconds.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  const double first = milliseconds.front();
  std::sort(milliseconds.begin() + 1, milliseconds.end());

  rope::client::DescribeRequest describe{.rope = request.rope};
  describe.positions.resize(kPromptTokens);
  std::iota(describe.positions.begin(), describe.positions.end(), 0);
  describe.positions.push_back(kDecodePosition);
  const DescribeReply described = OrExit(client.Describe(describe), "describe");
  Error error;
  Check(described, q, q_rotated, error);
  Check(described, k, k_rotated, error);

  std::printf("Rotated q [%ld, %ld, %ld] and k [%ld, %ld, %ld] (float32) of llama-3.1-8b on %s:\n",
              kTokens, kHeads, kHeadDim, kTokens, kKvHeads, kHeadDim, reply.device.c_str());
  std::printf("  a prompt at positions 0 to %ld, and one decode token at position %ld\n",
              kPromptTokens - 1, kDecodePosition);
  const size_t decode = static_cast<size_t>(kPromptTokens * kHeads * kHeadDim);
  std::printf("  first q numbers of the decode token: %.6f %.6f %.6f -> %.6f %.6f %.6f\n",
              q[decode], q[decode + 1], q[decode + 2], q_rotated[decode], q_rotated[decode + 1],
              q_rotated[decode + 2]);
  const bool right = error.over_tolerance <= 1;
  std::printf(
      "  largest error against double: %.2e, %.3f of the tolerance %.1e * (|a| + |b|): %s\n",
      error.largest, error.over_tolerance, kTolerance * described.attention_factor,
      right ? "right" : "WRONG");
  std::printf("  %.1f MB each way: first call %.2f ms, median of the next 10 %.2f ms\n",
              static_cast<double>((q.size() + k.size()) * sizeof(float)) / 1e6, first,
              milliseconds[6]);
  return right ? 0 : 1;
}
