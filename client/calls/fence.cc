#include "client/calls/fence.h"

#include <algorithm>
#include <vector>

#include "client/codec/message_call.h"
#include "client/error.h"
#include "kernels/status_macros.h"
#include "rope/v1/admin.pb.h"

namespace rope::client {
namespace {

using std::chrono::microseconds;

constexpr char kOtherFence[] = "another one is under way";
constexpr char kCallsLeft[] = "calls that name the memory have not ended";

Status TooLate(const char* what) {
  return MakeError(Reason::kDeadline, absl::StrCat("fence: ", what));
}

microseconds Until(RegionIds::Clock::time_point deadline) {
  const auto left = deadline - RegionIds::Clock::now();
  return std::max(std::chrono::duration_cast<microseconds>(left), microseconds(0));
}

}  // namespace

Status AwaitLeases(RegionIds& ids, RegionIds::Clock::time_point deadline) {
  const RegionIds::Turn turn = ids.TakeTurn(deadline);
  if (turn == nullptr) return TooLate(kOtherFence);
  const uint64_t id = *ids.Acquire();
  ids.Replace(id);
  if (!ids.AwaitGivenBack(deadline)) return TooLate(kCallsLeft);
  ids.Forget(id);
  return {};
}

Status AwaitFence(const Stub& stub, RegionIds& ids, RegionIds::Clock::time_point deadline) {
  const RegionIds::Turn turn = ids.TakeTurn(deadline);
  if (turn == nullptr) return TooLate(kOtherFence);
  v1::RegisterRegionRequest request;
  request.set_region_id(*ids.Acquire());
  ROPE_ASSIGN_OR_RETURN(const auto next,
                        MessageOf<v1::RegisterRegionResponse>(stub.Call(
                            RopeMethod("RegisterRegion"), BytesOf(request), {Until(deadline)})));
  ids.Replace(next.region_id());
  if (!ids.AwaitGivenBack(deadline)) return TooLate(kCallsLeft);
  const std::vector<uint64_t> replaced = ids.replaced();
  for (const uint64_t id : replaced) {
    // Unregistering the last id waits for the requests of all old ids. Earlier ids are left over
    // from fences that gave up; one of those may have unregistered them already (NOT_FOUND).
    const bool is_last = id == replaced.back();
    v1::UnregisterRegionRequest old;
    old.set_region_id(id);
    old.set_wait(is_last);
    const Status status =
        stub.Call(RopeMethod("UnregisterRegion"), BytesOf(old), {Until(deadline)}).status();
    const bool was_done = !is_last && status.code() == StatusCode::kNotFound;
    if (!status.ok() && !was_done) return status;
    ids.Forget(id);
  }
  return {};
}

}  // namespace rope::client
