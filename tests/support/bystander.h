// A well-behaved client. It sends a few hundred small rotations a second on one connection while
// other clients attack the server, and checks every answer.
//
// Threading:  Confined to one thread; calls on a background thread.
#ifndef ROPE_TESTS_SUPPORT_BYSTANDER_H_
#define ROPE_TESTS_SUPPORT_BYSTANDER_H_

#include <memory>
#include <string>
#include <thread>

#include "proto/mutex.h"
#include "rope/v1/rope_service.grpc.pb.h"

namespace rope::testing {

class Bystander {
 public:
  explicit Bystander(std::unique_ptr<v1::RopeService::Stub> stub);
  ~Bystander();
  Bystander(const Bystander&) = delete;
  Bystander& operator=(const Bystander&) = delete;

  struct Counts {
    int right = 0;
    int wrong = 0;            // wrong answers, and calls without an answer
    std::string first_wrong;  // why the first of them was wrong
    double slowest_ms = 0;    // of the right answers
  };
  // Stops calling. Returns the counts.
  Counts Stop();

 private:
  void CallOnce();

  const std::unique_ptr<v1::RopeService::Stub> stub_;
  Counts counts_;  // written by the thread until it has ended
  proto::Notification stop_;
  std::thread thread_;  // destroyed first
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_BYSTANDER_H_
