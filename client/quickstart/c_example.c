/* The smallest program in C: a query of ones at position 100000 for llama-3.1-8b. */
#include <stdio.h>

#include "rope/rope.h"

/* Prints the error, if there is one, and frees it. */
static int failed(rope_error* error) {
  if (error == NULL) return 0;
  fprintf(stderr, "%s: %s\n", rope_error_code(error), rope_error_message(error));
  rope_error_free(error);
  return 1;
}

int main(int argc, char** argv) {
  /* "inproc:" is the engine in this process; "HOST:PORT" or "unix:PATH" is a server. */
  rope_client* client = NULL;
  if (failed(rope_connect(argc > 1 ? argv[1] : "inproc:", NULL, &client))) return 1;

  /* Once: what stays the same is validated. */
  rope_prepared* decode = NULL;
  const char* request =
      "{\"rotate\": {\"rope\": {\"model\": \"llama-3.1-8b\"}, \"tensors\": [{"
      "\"role\": \"ROLE_Q\", \"layout\": \"SHD\","
      "\"array\": {\"dtype\": \"DTYPE_FP32\", \"shape\": [1, 32, 128]}}]}}";
  if (failed(rope_prepare(client, request, NULL, &decode))) return 1;

  static float q[32 * 128]; /* [tokens 1][heads 32][head_dim 128] */
  for (int i = 0; i < 32 * 128; ++i) q[i] = 1;
  int64_t position = 100000, shape[] = {1, 32, 128};
  const DLTensor q_tensor = {
      .data = q, .device = {kDLCPU, 0}, .ndim = 3, .dtype = {kDLFloat, 32, 1}, .shape = shape};
  const DLTensor start = {.data = &position, .device = {kDLCPU, 0}, .dtype = {kDLInt, 64, 1}};

  /* In every step: the arguments of the call. The answer lands in q. */
  const rope_argument arguments[] = {{"q", &q_tensor}, {"positions", &start}};
  if (failed(rope_rotate(decode, arguments, 2, NULL))) return 1;
  printf("%.7f %.7f ...\n", q[0], q[1]);
  rope_prepared_free(decode);
  rope_close(client);
  return 0;
}
