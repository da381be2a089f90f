// Makes rope_server over the fake CUDA runtime lose its device: SIGUSR1 does it.
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <signal.h>

#include <thread>

#include "tests/support/fake_cudart.h"

namespace rope::testing {
namespace {

// Runs before main, so that all threads of the server inherit the blocked signal. The thread that
// waits for it leaves every other signal to the server.
bool WaitForTheSignal() {
  sigset_t every;
  sigset_t before;
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &before);
  std::thread([] {
    sigset_t lose;
    sigemptyset(&lose);
    sigaddset(&lose, SIGUSR1);
    int received = 0;
    sigwait(&lose, &received);
    fake_cuda::Fail("cudaLaunchKernel", 1, cudaErrorIllegalAddress, true);
  }).detach();
  sigaddset(&before, SIGUSR1);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return true;
}

[[maybe_unused]] const bool waiting = WaitForTheSignal();

}  // namespace
}  // namespace rope::testing
