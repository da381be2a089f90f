// Random rotation requests of many kinds, and their answers in double. Eight embeddings (presets,
// yarn, llama3, linear, dynamic, partial, both pairings), every dtype, 1 to 96 tokens, sometimes
// 512 to 1023.
//
// Threading:  A RandomJobs is confined to one thread, and so is a Job.
// Precision:  Answers come from kernels/frequencies/frequencies.h in long double, without a table,
//             a kernel or a server.
#ifndef ROPE_TESTS_E2E_RANDOM_JOBS_H_
#define ROPE_TESTS_E2E_RANDOM_JOBS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/frequencies/frequencies.h"
#include "rope/client.h"

namespace rope::testing {

// An embedding as a client names it and as the reference knows it.
struct JobSpec {
  client::RopeSpec rope;
  client::Pairing pairing = client::Pairing::kHalf;
  std::shared_ptr<const kernels::ResolvedRope> resolved;
  int64_t seq_len = 0;  // > 0: planned length, sent along
};

// One request with the memory of its tensors and the expected answer. Must not be moved in memory.
class Job {
 public:
  Job(const JobSpec& spec, client::DType dtype, int64_t tokens, int64_t position, bool in_place,
      uint32_t seed);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const client::RotateRequest& request() const { return request_; }
  // Describes the error in the reply; empty: the reply is within the tolerance.
  std::string Check(const Result<client::RotateReply>& reply) const;

 private:
  struct Tensor {
    client::Role role = client::Role::kQ;
    int64_t heads = 0;
    std::vector<double> values;
    std::vector<std::byte> data;
    std::vector<std::byte> output;
  };

  void Add(client::Role role, int64_t heads, bool in_place, std::minstd_rand& random);
  // `values`, rotated in double.
  std::vector<double> Rotated(const Tensor& tensor) const;

  const JobSpec& spec_;
  const client::DType dtype_;
  const int64_t tokens_;
  const int64_t position_;
  std::vector<std::unique_ptr<Tensor>> tensors_;
  client::RotateRequest request_;
};

class RandomJobs {
 public:
  explicit RandomJobs(uint32_t seed) : random_(seed) {}
  std::unique_ptr<Job> Next();
  // A random decision that belongs to the jobs: true for one in `n`.
  bool OneIn(uint32_t n) { return random_() % n == 0; }

 private:
  std::minstd_rand random_;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_E2E_RANDOM_JOBS_H_
