/* The smallest program in C: a query of ones at position 100000 for llama-3.1-8b. */
#include <stdio.h>

#include "rope/rope.h"

/* Prints the error, if there is one, and frees it. */
static int failed(rope_error* error) {
  if (error == NULL) return 0;
  fprintf(stderr, "%s: %s\n", rope_code_name(rope_error_code(error)), rope_error_message(error));
  rope_error_free(error);
  return 1;
}

int main(int argc, char** argv) {
  /* "inproc:" is the engine in this process; "HOST:PORT" or "unix:PATH" is a server. */
  rope_client* client = NULL;
  if (failed(rope_connect(argc > 1 ? argv[1] : "inproc:", NULL, &client))) return 1;

  static float q[32 * 128]; /* [tokens 1][heads 32][head_dim 128] */
  for (int i = 0; i < 32 * 128; ++i) q[i] = 1;
  const int64_t shape[] = {1, 32, 128};
  rope_tensor tensor = ROPE_TENSOR_INIT;
  tensor.layout = "SHD";
  tensor.rank = 3;
  tensor.shape = shape;
  tensor.data = q;
  tensor.output = q; /* the answer lands here */

  rope_spec rope = ROPE_SPEC_INIT;
  rope.model = "llama-3.1-8b";
  rope_positions positions = ROPE_POSITIONS_INIT;
  positions.start = 100000;
  rope_request request = ROPE_REQUEST_INIT;
  request.rope = &rope;
  request.positions = &positions;
  request.tensors = &tensor;
  request.tensor_count = 1;
  rope_reply* reply = NULL;
  if (failed(rope_rotate(client, &request, NULL, &reply))) return 1;
  printf("%s: %.7f %.7f ...\n", rope_reply_device(reply), q[0], q[1]);
  rope_reply_free(reply);

  /* A loop: what stays the same is validated once. */
  rope_prepared* decode = NULL;
  if (failed(rope_prepare(client, &request, NULL, NULL, &decode))) return 1;
  const void* data[] = {q};
  void* outputs[] = {q};
  rope_values values = ROPE_VALUES_INIT;
  values.positions = &positions;
  values.data = data;
  values.outputs = outputs;
  values.tensor_count = 1;
  for (positions.start = 100001; positions.start < 100100; ++positions.start) {
    if (failed(rope_rotate_prepared(client, decode, &values, NULL, NULL))) return 1;
  }
  rope_prepared_free(decode);
  rope_close(client);
  return 0;
}
