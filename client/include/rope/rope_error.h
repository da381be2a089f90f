// Errors of the C API, which rope.h explains. The accessors take null, which is success: its code
// is ROPE_OK, its texts are empty and its numbers 0.
//
// Threading:  As rope.h says.
// Ownership:  Texts belong to the error. Who receives an error frees it.
#ifndef ROPE_ROPE_ERROR_H_
#define ROPE_ROPE_ERROR_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rope_error rope_error;

// Codes are those of gRPC.
enum {
  ROPE_OK = 0,
  ROPE_CANCELLED = 1,
  ROPE_UNKNOWN = 2,
  ROPE_INVALID_ARGUMENT = 3,
  ROPE_DEADLINE_EXCEEDED = 4,
  ROPE_NOT_FOUND = 5,
  ROPE_ALREADY_EXISTS = 6,
  ROPE_PERMISSION_DENIED = 7,
  ROPE_RESOURCE_EXHAUSTED = 8,
  ROPE_FAILED_PRECONDITION = 9,
  ROPE_ABORTED = 10,
  ROPE_OUT_OF_RANGE = 11,
  ROPE_UNIMPLEMENTED = 12,
  ROPE_INTERNAL = 13,
  ROPE_UNAVAILABLE = 14,
  ROPE_DATA_LOSS = 15,
  ROPE_UNAUTHENTICATED = 16
};

// Why a call failed, for a program to branch on. proto/rope/v1/rotate.proto explains each.
enum {
  ROPE_REASON_UNSPECIFIED = 0,
  ROPE_REASON_INVALID_FIELD = 1,
  ROPE_REASON_UNKNOWN_FIELD = 2,
  ROPE_REASON_NOT_BUILT = 3,
  ROPE_REASON_POSITION_OUT_OF_RANGE = 4,
  ROPE_REASON_REGION_OUT_OF_RANGE = 5,
  ROPE_REASON_MODEL_NOT_FOUND = 6,
  ROPE_REASON_CONFIG_ID_NOT_FOUND = 7,
  ROPE_REASON_REGION_NOT_FOUND = 8,
  ROPE_REASON_SERVICE_NOT_FOUND = 9,
  ROPE_REASON_WRONG_STATE = 12,
  ROPE_REASON_SHARED_MEMORY_OFF = 13,
  ROPE_REASON_PERMISSION = 14,
  ROPE_REASON_QUEUE_FULL = 15,
  ROPE_REASON_BUDGET_FULL = 16,
  ROPE_REASON_LIMIT_EXCEEDED = 17,
  ROPE_REASON_DRAINING = 18,
  ROPE_REASON_CONNECTION_LOST = 19,
  ROPE_REASON_DEADLINE = 20,
  ROPE_REASON_CANCELLED = 21,
  ROPE_REASON_DEVICE_FAULT = 22,
  ROPE_REASON_INTERNAL = 23,
  ROPE_REASON_PREPARED_NOT_FOUND = 24,
  ROPE_REASON_CREDENTIALS = 25
};

// "INVALID_ARGUMENT" and so on; "INVALID_FIELD" and so on.
const char* rope_code_name(int32_t code);
const char* rope_reason_name(int32_t reason);

int32_t rope_error_code(const rope_error* error);
int32_t rope_error_reason(const rope_error* error);
// Field, got and want, if there are any, in one text:
// "rope.config.factor: got 0, want a number > 0".
const char* rope_error_message(const rope_error* error);
const char* rope_error_field(const rope_error* error);  // path of the faulty field, or ""
const char* rope_error_got(const rope_error* error);
const char* rope_error_want(const rope_error* error);
// Milliseconds. > 0: the same call may succeed after this delay.
int64_t rope_error_retry_delay_ms(const rope_error* error);
// 1: the request may have run, so that a call in place may have changed its tensors.
int32_t rope_error_may_have_executed(const rope_error* error);
void rope_error_free(rope_error* error);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // ROPE_ROPE_ERROR_H_
