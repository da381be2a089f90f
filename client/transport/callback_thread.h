// Marks the threads that run the callbacks of a connection. Such a thread must not wait for other
// callbacks of the connection: some of them run on it, after the current one.
//
// Threading:  Thread-safe; each thread has its own mark.
#ifndef ROPE_CLIENT_TRANSPORT_CALLBACK_THREAD_H_
#define ROPE_CLIENT_TRANSPORT_CALLBACK_THREAD_H_

namespace rope::client {

// Names a connection; its address is what counts.
struct CallbackOwner {};

// Marks the calling thread for the rest of its life. REQUIRES: `owner` outlives the thread.
void EnterCallbackThread(const CallbackOwner& owner);
// Whether the calling thread runs the callbacks of `owner`.
bool IsCallbackThreadOf(const CallbackOwner& owner);

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_CALLBACK_THREAD_H_
