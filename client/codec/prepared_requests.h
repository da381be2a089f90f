// PreparedRequests: the preparations that a session knows, and which of them its server has said
// the id of.
//
//   a request that is new, or was sent whole:  UseOf -> sent whole -> answered
//   one that is due (it repeats):              ... -> TakeTurn -> Prepare -> NoteAnswer
//   one with an id:                            UseOf -> sent by id -> answered
//                                                    -> forgotten: NoteForgotten -> sent whole
//
// A request is due when it is sent for the second time. Once the server forgets an id, or an answer
// fails in a way that may pass, 1, 2, 4 ... 1024 requests are sent whole before the next question.
// An error that stays is remembered: that request is sent whole from then on.
//
// Threading:  Thread-safe. The lock is held to compare a request with the entries.
// Limits:     kEntriesMax preparations; the least recently used one goes first.
#ifndef ROPE_CLIENT_CODEC_PREPARED_REQUESTS_H_
#define ROPE_CLIENT_CODEC_PREPARED_REQUESTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/codec/preparation.h"
#include "proto/mutex.h"
#include "rope/rotate.h"
#include "rope/status.h"

namespace rope::client {

// How a request is sent.
struct PreparedUse {
  std::shared_ptr<const Preparation> preparation = nullptr;  // null: it cannot be prepared
  std::shared_ptr<const std::string> id = nullptr;           // null: it is sent whole
  bool is_due = false;  // the server may be asked for the id once this request is answered
};

class PreparedRequests {
 public:
  static constexpr size_t kEntriesMax = 16;

  // `finds_repeats`: whether requests that do not name a preparation are looked up too.
  explicit PreparedRequests(bool finds_repeats) : finds_repeats_(finds_repeats) {}

  // Counts the request, which is about to be sent.
  PreparedUse UseOf(const RotateRequest& request);

  // Whether this caller may ask. True: it asks, and NoteAnswer follows.
  bool TakeTurn(const PreparedUse& use);
  void NoteAnswer(const std::shared_ptr<const Preparation>& preparation,
                  const Result<std::shared_ptr<const PreparedState>>& answer);
  // The server does not have `use.id`.
  void NoteForgotten(const PreparedUse& use);

 private:
  struct Entry {
    std::shared_ptr<const Preparation> preparation;
    std::shared_ptr<const std::string> id = nullptr;
    int64_t whole_until_due = 2;
    int questions = 0;        // asked so far
    bool is_asking = false;   // a question is under way
    bool is_refused = false;  // the server cannot prepare it
    uint64_t last_used = 0;
  };

  PreparedUse UseOf(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  PreparedUse UseOfRotation(const PreparedRotation& rotation);
  PreparedUse UseOfRepeat(const RotateRequest& request);
  Entry* Find(const Preparation* preparation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Entry* FindEqual(const RotateRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Entry& Add(Entry entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void Postpone(Entry& entry);

  const bool finds_repeats_;
  proto::Mutex mu_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mu_);
  uint64_t uses_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_PREPARED_REQUESTS_H_
