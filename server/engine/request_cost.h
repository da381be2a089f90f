// What a request makes the server hold, and how long its planning takes, from what is known of it
// so far. Sums that pass 63 bits count as more than there is.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_ENGINE_REQUEST_COST_H_
#define ROPE_SERVER_ENGINE_REQUEST_COST_H_

#include <cstdint>

#include "server/request/request.h"

namespace rope::server {

// Of a request that was decoded: its message, and what is not raw bytes once more as objects.
int64_t ReceivedBytes(const Request& request);

// What its planning reads, in bytes: positions of tokens, rows, and every array that is no tensor.
int64_t PlanningBytes(const Request& request);

// What planning and running take beside that: copies of people's numbers, what each token costs,
// rows that the caller brings, results that do not go straight into a client's memory. REQUIRES:
// `plan` has its tensors and their places.
int64_t RunningBytes(const v1::RotateRequest& asked, const Plan& plan);

// Fills `building` of a plan whose positions stand: a token on another page than the one before it
// may have to wait until that page is built, and rows that are made for the request are made one by
// one.
void BoundBuilding(Plan& plan);

// What the reply holds of results: those without a place elsewhere.
int64_t ReplyBytes(const v1::RotateRequest& asked, const Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_REQUEST_COST_H_
