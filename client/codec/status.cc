#include "rope/status.h"

namespace rope {

const char* Name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "OK";
    case StatusCode::kCancelled:
      return "CANCELLED";
    case StatusCode::kUnknown:
      return "UNKNOWN";
    case StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case StatusCode::kNotFound:
      return "NOT_FOUND";
    case StatusCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case StatusCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case StatusCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case StatusCode::kAborted:
      return "ABORTED";
    case StatusCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case StatusCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case StatusCode::kInternal:
      return "INTERNAL";
    case StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case StatusCode::kDataLoss:
      return "DATA_LOSS";
    case StatusCode::kUnauthenticated:
      return "UNAUTHENTICATED";
  }
  return "UNKNOWN";  // a number that gRPC does not define
}

const char* Name(Reason reason) {
  switch (reason) {
    case Reason::kUnspecified:
      return "UNSPECIFIED";
    case Reason::kInvalidField:
      return "INVALID_FIELD";
    case Reason::kUnknownField:
      return "UNKNOWN_FIELD";
    case Reason::kNotBuilt:
      return "NOT_BUILT";
    case Reason::kPositionOutOfRange:
      return "POSITION_OUT_OF_RANGE";
    case Reason::kRegionOutOfRange:
      return "REGION_OUT_OF_RANGE";
    case Reason::kModelNotFound:
      return "MODEL_NOT_FOUND";
    case Reason::kConfigIdNotFound:
      return "CONFIG_ID_NOT_FOUND";
    case Reason::kRegionNotFound:
      return "REGION_NOT_FOUND";
    case Reason::kServiceNotFound:
      return "SERVICE_NOT_FOUND";
    case Reason::kModelExists:
      return "MODEL_EXISTS";
    case Reason::kRegionExists:
      return "REGION_EXISTS";
    case Reason::kWrongState:
      return "WRONG_STATE";
    case Reason::kSharedMemoryOff:
      return "SHARED_MEMORY_OFF";
    case Reason::kPermission:
      return "PERMISSION";
    case Reason::kQueueFull:
      return "QUEUE_FULL";
    case Reason::kBudgetFull:
      return "BUDGET_FULL";
    case Reason::kLimitExceeded:
      return "LIMIT_EXCEEDED";
    case Reason::kDraining:
      return "DRAINING";
    case Reason::kConnectionLost:
      return "CONNECTION_LOST";
    case Reason::kDeadline:
      return "DEADLINE";
    case Reason::kCancelled:
      return "CANCELLED";
    case Reason::kDeviceFault:
      return "DEVICE_FAULT";
    case Reason::kInternal:
      return "INTERNAL";
    case Reason::kPreparedNotFound:
      return "PREPARED_NOT_FOUND";
  }
  return "UNSPECIFIED";
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  return std::string(Name(code_)) + ": " + message_;
}

}  // namespace rope
