// UntakenReply: the reply of a call, in a list of transfers until the client has taken it. Ending
// it cancels the call.
//
// Threading:  Enter and Leave as in Transfers.
// Ownership:  A member of its call, which has Cancel(), and Retain() and Release() as a transfer.
#ifndef ROPE_SERVER_GRPC_UNTAKEN_REPLY_H_
#define ROPE_SERVER_GRPC_UNTAKEN_REPLY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "server/grpc/transfers.h"

namespace rope::server {

template <typename Call>
class UntakenReply final : private Transfers::Transfer {
 public:
  explicit UntakenReply(Call& call) : Transfers::Transfer(/*may_idle=*/false), call_(call) {}

  // Before the reply is written. `list`: null for none.
  void Enter(Transfers* list, uint64_t session) {
    list_ = list;
    if (list_ != nullptr) list_->Enter(*this, session);
  }
  // Whether it is in a list.
  bool entered() const { return list_ != nullptr; }
  // After the reply was taken, or was not entered.
  void Leave() {
    if (list_ != nullptr) list_->Leave(*this);
    list_ = nullptr;
  }

 private:
  void EndTransfer(const absl::Status&) override { call_.Cancel(); }
  void AbortTransfer() override { call_.Cancel(); }
  void Retain() override { call_.Retain(); }
  void Release() override { call_.Release(); }

  Call& call_;
  Transfers* list_ = nullptr;  // that the reply is in
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_UNTAKEN_REPLY_H_
