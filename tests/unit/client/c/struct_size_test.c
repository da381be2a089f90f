/* Programs that were compiled with another version of rope.h: smaller structs, and larger ones. */
#include <stddef.h>

#include "check.h"

/* Sizes of this version. A change of one is a change of the ABI. */
_Static_assert(sizeof(rope_connect_options) == 120, "");
_Static_assert(sizeof(rope_model_config) == 24, "");
_Static_assert(sizeof(rope_engine_options) == 40, "");
_Static_assert(sizeof(rope_call_options) == 56, "");
_Static_assert(sizeof(rope_spec) == 80, "");
_Static_assert(sizeof(rope_positions) == 104, "");
_Static_assert(sizeof(rope_head_range) == 24, "");
_Static_assert(sizeof(rope_tensor) == 152, "");
_Static_assert(sizeof(rope_request) == 80, "");
_Static_assert(sizeof(rope_values) == 64, "");
_Static_assert(sizeof(rope_result) == 64, "");
_Static_assert(sizeof(rope_tables_request) == 128, "");
_Static_assert(sizeof(rope_array) == 40, "");
_Static_assert(sizeof(rope_describe_request) == 56, "");
_Static_assert(sizeof(rope_key_source) == 48, "");
_Static_assert(sizeof(rope_fingerprint_request) == 24, "");

enum { DIM = 4 };
static const char kConfig[] =
    "{\"model_type\": \"llama\", \"rope_theta\": 10000.0, \"head_dim\": 4}";
static const int64_t kShape[] = {1, DIM};

typedef struct {
  rope_tensor known;
  double added; /* by a later version */
  int64_t also;
} later_tensor;
typedef struct {
  rope_request known;
  const char* added;
} later_request;
typedef struct {
  rope_result known;
  int64_t added;
} later_result;

static rope_client* client;
static float values[DIM] = {1, 0, 0, 0};
static float result[DIM];
static rope_spec rope;
static rope_positions positions;

static rope_tensor tensor_of_values(void) {
  rope_tensor tensor = ROPE_TENSOR_INIT;
  tensor.layout = "SD";
  tensor.rank = 2;
  tensor.shape = kShape;
  tensor.data = values;
  tensor.output = result;
  return tensor;
}

static rope_request request_of(const rope_tensor* tensor) {
  rope_request request = ROPE_REQUEST_INIT;
  request.rope = &rope;
  request.positions = &positions;
  request.tensors = tensor;
  request.tensor_count = 1;
  return request;
}

static void check_result(void) {
  CHECK_NEAR(result[0], cos(1), 1e-6);
  CHECK_NEAR(result[2], sin(1), 1e-6);
  memset(result, 0, sizeof(result));
}

/* Fields that an older program did not have count as 0, whatever lies there. */
static void test_smaller(void) {
  rope_tensor tensor = tensor_of_values();
  tensor.struct_size = offsetof(rope_tensor, output_layout);
  memset((char*)&tensor + tensor.struct_size, 0x5a, sizeof(tensor) - tensor.struct_size);
  rope_request request = request_of(&tensor);
  request.struct_size = offsetof(rope_request, operation);
  memset((char*)&request + request.struct_size, 0x5a, sizeof(request) - request.struct_size);
  CHECK_OK(rope_rotate(client, &request, NULL, NULL));
  check_result();

  /* An output struct is written as far as it goes. */
  rope_reply* reply = NULL;
  CHECK_OK(rope_rotate(client, &request, NULL, &reply));
  rope_result given = ROPE_RESULT_INIT;
  given.struct_size = offsetof(rope_result, shape);
  given.layout = "untouched";
  CHECK_OK(rope_reply_tensor(reply, 0, &given));
  CHECK(given.bytes == sizeof(result) && given.data == result);
  CHECK_TEXT(given.layout, "untouched");
  CHECK(given.struct_size == offsetof(rope_result, shape));
  later_result later = {ROPE_RESULT_INIT, 0};
  later.known.struct_size = sizeof(later);
  CHECK_OK(rope_reply_tensor(reply, 0, &later.known));
  CHECK(later.known.rank == 2 && later.added == 0 && later.known.struct_size == sizeof(later));
  rope_reply_free(reply);
}

/* A newer program may use this library as long as it does not use what the library lacks. */
static void test_larger(void) {
  later_tensor tensors[2];
  memset(tensors, 0, sizeof(tensors));
  tensors[0].known = tensors[1].known = tensor_of_values();
  tensors[0].known.struct_size = tensors[1].known.struct_size = sizeof(later_tensor);
  float second[DIM] = {0, 1, 0, 0};
  tensors[1].known.data = tensors[1].known.output = second;
  later_request request = {request_of(&tensors[0].known), NULL};
  request.known.struct_size = sizeof(request);
  request.known.tensor_count = 2;
  CHECK_OK(rope_rotate(client, &request.known, NULL, NULL));
  check_result();
  CHECK_NEAR(second[1], cos(0.01), 1e-6);

  tensors[1].also = 1;
  CHECK_REFUSED(rope_rotate(client, &request.known, NULL, NULL), "tensors[1].struct_size");
  tensors[1].also = 0;
  request.added = "a wish";
  CHECK_REFUSED(rope_rotate(client, &request.known, NULL, NULL), "request.struct_size");
}

static void test_wrong(void) {
  rope_tensor tensors[] = {tensor_of_values(), tensor_of_values()};
  rope_request request = request_of(tensors);
  const size_t wrong[] = {0, 1, 7, 81};
  for (int i = 0; i < 4; ++i) {
    request.struct_size = wrong[i];
    CHECK_REFUSED(rope_rotate(client, &request, NULL, NULL), "request.struct_size");
  }
  request.struct_size = sizeof(request);
  rope.struct_size = 0;
  CHECK_REFUSED(rope_rotate(client, &request, NULL, NULL), "rope.struct_size");
  rope.struct_size = sizeof(rope);
  positions.struct_size = 0;
  CHECK_REFUSED(rope_rotate(client, &request, NULL, NULL), "positions.struct_size");
  positions.struct_size = sizeof(positions);
  request.tensor_count = 2;
  tensors[1].struct_size = 72;
  CHECK_REFUSED(rope_rotate(client, &request, NULL, NULL), "tensors[1].struct_size");
  tensors[0].struct_size = 0;
  CHECK_REFUSED(rope_rotate(client, &request, NULL, NULL), "tensors[0].struct_size");

  rope_call_options options = ROPE_CALL_OPTIONS_INIT;
  options.struct_size = 0;
  CHECK_REFUSED(rope_fence(client, &options), "options.struct_size");
  rope_connect_options connect = ROPE_CONNECT_OPTIONS_INIT;
  connect.struct_size = 0;
  rope_client* none = NULL;
  CHECK_REFUSED(rope_connect("inproc:", &connect, &none), "options.struct_size");
  rope_engine_options engine = ROPE_ENGINE_OPTIONS_INIT;
  engine.struct_size = 0;
  CHECK_REFUSED(rope_connect_in_process(&engine, NULL, &none), "engine.struct_size");
}

int main(void) {
  rope = (rope_spec)ROPE_SPEC_INIT;
  rope.config_json = kConfig;
  positions = (rope_positions)ROPE_POSITIONS_INIT;
  positions.start = 1;
  client = connect_to("in_process", NULL);
  test_smaller();
  test_larger();
  test_wrong();
  rope_close(client);
  return 0;
}
