#include "client/transport/callback_thread.h"

namespace rope::client {
namespace {

thread_local const CallbackOwner* owner_of_thread = nullptr;

}  // namespace

void EnterCallbackThread(const CallbackOwner& owner) {
  owner_of_thread = &owner;
}

bool IsCallbackThreadOf(const CallbackOwner& owner) {
  return owner_of_thread == &owner;
}

}  // namespace rope::client
