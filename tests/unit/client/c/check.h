/* Checks of the tests in C: the first that fails ends the program. */
#ifndef ROPE_TESTS_UNIT_CLIENT_C_CHECK_H_
#define ROPE_TESTS_UNIT_CLIENT_C_CHECK_H_

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rope/rope.h"

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                 \
    }                                                                          \
  } while (0)

#define CHECK_NEAR(got, want, tolerance)                                                \
  do {                                                                                  \
    const double got_ = (got), want_ = (want);                                          \
    if (!(fabs(got_ - want_) <= (tolerance))) {                                         \
      fprintf(stderr, "%s:%d: got %.9g, want %.9g\n", __FILE__, __LINE__, got_, want_); \
      exit(1);                                                                          \
    }                                                                                   \
  } while (0)

#define CHECK_TEXT(got, want)                                                               \
  do {                                                                                      \
    const char *got_ = (got), *want_ = (want);                                              \
    if (strcmp(got_, want_) != 0) {                                                         \
      fprintf(stderr, "%s:%d: got \"%s\", want \"%s\"\n", __FILE__, __LINE__, got_, want_); \
      exit(1);                                                                              \
    }                                                                                       \
  } while (0)

#define CHECK_OK(call)                                                                \
  do {                                                                                \
    const rope_error* error_ = (call);                                                \
    if (error_) {                                                                     \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, rope_error_message(error_)); \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)

/* An error of this code and reason about this field. */
#define CHECK_ERROR(call, code, reason, field)          \
  do {                                                  \
    rope_error* refusal_ = (call);                      \
    CHECK_TEXT(rope_error_field(refusal_), field);      \
    CHECK_TEXT(rope_error_code(refusal_), code);        \
    CHECK_TEXT(rope_error_reason(refusal_), reason);    \
    CHECK(strlen(rope_error_got(refusal_)) > 0);        \
    CHECK(strlen(rope_error_want(refusal_)) > 0);       \
    CHECK(strstr(rope_error_message(refusal_), field)); \
    rope_error_free(refusal_);                          \
  } while (0)

#define CHECK_REFUSED(call, field) CHECK_ERROR(call, "INVALID_ARGUMENT", "INVALID_FIELD", field)

#endif /* ROPE_TESTS_UNIT_CLIENT_C_CHECK_H_ */
