/* Every call of the C API, from a program in C11. Numbers are compared with cos and sin of libm, and
   with the tables of the same connection.
   Usage: c_api_test TARGET, which is in_process, inproc:, HOST:PORT or unix:PATH. */
#include "check.h"

enum { TOKENS = 3, HEADS = 2, DIM = 8, PAIRS = DIM / 2, COUNT = TOKENS * HEADS * DIM };

static const char kConfig[] =
    "{\"model_type\": \"llama\", \"rope_theta\": 10000.0, \"head_dim\": 8}";
static const char kOtherConfig[] =
    "{\"model_type\": \"llama\", \"rope_theta\": 500.0, \"head_dim\": 8}";
static const int64_t kShape[] = {TOKENS, HEADS, DIM};

/* A request for one tensor, whose parts point to each other. */
typedef struct {
  float values[COUNT];
  float result[COUNT];
  rope_spec rope;
  rope_positions positions;
  rope_positions from;
  rope_tensor tensor;
  rope_request request;
} job;

static void start_job(job* it, int64_t start) {
  for (int i = 0; i < COUNT; ++i) {
    it->values[i] = (float)(i % 23) - 11;
    it->result[i] = NAN;
  }
  it->rope = (rope_spec)ROPE_SPEC_INIT;
  it->rope.config_json = kConfig;
  it->positions = (rope_positions)ROPE_POSITIONS_INIT;
  it->positions.start = start;
  it->from = (rope_positions)ROPE_POSITIONS_INIT;
  it->tensor = (rope_tensor)ROPE_TENSOR_INIT;
  it->tensor.layout = "SHD";
  it->tensor.rank = 3;
  it->tensor.shape = kShape;
  it->tensor.data = it->values;
  it->tensor.output = it->result;
  it->request = (rope_request)ROPE_REQUEST_INIT;
  it->request.rope = &it->rope;
  it->request.positions = &it->positions;
  it->request.tensors = &it->tensor;
  it->request.tensor_count = 1;
}

/* The rotation in double, of half pairs. */
static double rotated(const float* values, int index, double position, double theta) {
  const int channel = index % DIM, pair = channel % PAIRS;
  const double angle = position * pow(theta, -2.0 * pair / DIM);
  const int head = index - channel;
  const double first = values[head + pair], second = values[head + pair + PAIRS];
  if (channel < PAIRS) return first * cos(angle) - second * sin(angle);
  return second * cos(angle) + first * sin(angle);
}

static void check_rotated(const float* result, const float* values, int64_t start, double theta) {
  for (int i = 0; i < COUNT; ++i) {
    const double position = (double)(start + i / (HEADS * DIM));
    CHECK_NEAR(result[i], rotated(values, i, position, theta), 1e-5);
  }
}

static void test_rotate(const rope_client* client) {
  job it;
  start_job(&it, 5);
  CHECK_OK(rope_rotate(client, &it.request, NULL, NULL));
  check_rotated(it.result, it.values, 5, 10000);

  /* The reply has the result, and says how it came about. */
  it.tensor.output = NULL;
  it.request.request_id = "a name";
  rope_reply* reply = NULL;
  CHECK_OK(rope_rotate(client, &it.request, NULL, &reply));
  CHECK_TEXT(rope_reply_device(reply), "cpu");
  CHECK_TEXT(rope_reply_request_id(reply), "a name");
  CHECK(rope_reply_attention_factor(reply) == 1 && rope_reply_attention_factor_applied(reply) == 1);
  CHECK(rope_reply_warning(reply, rope_reply_warning_count(reply)) == NULL);
  CHECK(rope_reply_tensor_count(reply) == 1);
  rope_result result = ROPE_RESULT_INIT;
  CHECK_OK(rope_reply_tensor(reply, 0, &result));
  CHECK(result.bytes == (int64_t)sizeof(it.result) && result.rank == 3 && result.is_owned == 1);
  CHECK(result.dtype == ROPE_DTYPE_FP32 && result.role == ROPE_ROLE_Q && result.shape[2] == DIM);
  CHECK_TEXT(result.layout, "SHD");
  CHECK(memcmp(result.data, it.result, sizeof(it.result)) == 0);
  CHECK_REFUSED(rope_reply_tensor(reply, 1, &result), "index");
  rope_reply_free(reply);
}

/* Pairing, positions of each token, strides, roles, output layout and dtype, scale. */
static void test_fields(const rope_client* client) {
  job it;
  start_job(&it, 0);
  const int64_t ids[] = {7, 0, 100000};
  it.positions.position_ids = ids;
  it.positions.position_id_count = TOKENS;
  const double scale = 0.5;
  it.tensor.scale = &scale;
  CHECK_OK(rope_rotate(client, &it.request, NULL, NULL));
  for (int i = 0; i < COUNT; ++i) {
    const double position = (double)ids[i / (HEADS * DIM)];
    CHECK_NEAR(it.result[i], 0.5 * rotated(it.values, i, position, 10000), 1e-5);
  }

  start_job(&it, 0);
  const int64_t shape[] = {1, 1, 2}, strides[] = {0, 0, 1};
  unsigned short halves[2] = {0, 0};
  const float pair[] = {1, 0};
  it.rope.config_json = "{\"model_type\": \"llama\", \"rope_theta\": 10000.0, \"head_dim\": 2}";
  it.rope.pairing = ROPE_PAIRING_INTERLEAVED;
  it.tensor.role = ROPE_ROLE_K;
  it.tensor.output_layout = "HSD";
  it.tensor.shape = shape;
  it.tensor.strides = strides;
  it.tensor.data = pair;
  it.tensor.output = halves;
  it.request.output_dtype = ROPE_DTYPE_BF16;
  rope_reply* reply = NULL;
  CHECK_OK(rope_rotate(client, &it.request, NULL, &reply));
  CHECK(halves[0] == 0x3f80 && halves[1] == 0); /* position 0: (1, 0) */
  rope_result result = ROPE_RESULT_INIT;
  CHECK_OK(rope_reply_tensor(reply, 0, &result));
  CHECK(result.dtype == ROPE_DTYPE_BF16 && result.role == ROPE_ROLE_K && result.is_owned == 0);
  CHECK(result.data == halves);
  rope_reply_free(reply);

  start_job(&it, 3);
  const float weight[DIM] = {2, 2, 2, 2, 2, 2, 2, 2};
  for (int i = 0; i < COUNT; ++i) it.values[i] = 3;
  it.tensor.norm_weight = weight;
  it.tensor.norm_eps = 1e-12;
  CHECK_OK(rope_rotate(client, &it.request, NULL, NULL));
  CHECK_NEAR(it.result[0], 2 * (cos(3) - sin(3)), 1e-5); /* threes have the norm 1 */

  start_job(&it, 3);
  const rope_head_range ranges[] = {{0, 1, ROPE_ROLE_Q}, {1, 2, 0}};
  it.tensor.head_ranges = ranges;
  it.tensor.head_range_count = 2;
  CHECK_OK(rope_rotate(client, &it.request, NULL, NULL));
  CHECK_NEAR(it.result[0], rotated(it.values, 0, 3, 10000), 1e-5);
  CHECK(memcmp(it.result + DIM, it.values + DIM, DIM * sizeof(float)) == 0);
}

static void test_operations(const rope_client* client) {
  job it, back;
  start_job(&it, 5);
  CHECK_OK(rope_rotate(client, &it.request, NULL, NULL));
  const int32_t operations[] = {ROPE_OPERATION_INVERSE, ROPE_OPERATION_BACKWARD};
  for (int o = 0; o < 2; ++o) {
    start_job(&back, 5);
    back.tensor.data = it.result;
    back.request.operation = operations[o];
    CHECK_OK(rope_rotate(client, &back.request, NULL, NULL));
    for (int i = 0; i < COUNT; ++i) CHECK_NEAR(back.result[i], it.values[i], 1e-5);
  }
}

static void test_reposition(const rope_client* client) {
  job it, moved;
  start_job(&it, 5);
  CHECK_OK(rope_rotate(client, &it.request, NULL, NULL));
  start_job(&moved, 1000);
  moved.tensor.data = it.result;
  moved.request.operation = ROPE_OPERATION_REPOSITION;
  moved.from.start = 5;
  moved.request.from = &moved.from;
  CHECK_OK(rope_rotate(client, &moved.request, NULL, NULL));
  check_rotated(moved.result, it.values, 1000, 10000);

  /* Each token from a position of its own, and to another embedding. */
  const int64_t ids[] = {5, 6, 7};
  moved.from.start = 0;
  moved.from.position_ids = ids;
  moved.from.position_id_count = TOKENS;
  rope_spec from_rope = ROPE_SPEC_INIT;
  from_rope.config_json = kConfig;
  moved.request.from_rope = &from_rope;
  moved.rope.config_json = kOtherConfig;
  CHECK_OK(rope_rotate(client, &moved.request, NULL, NULL));
  check_rotated(moved.result, it.values, 1000, 500);
}

static void test_prepared(const rope_client* client) {
  job it;
  start_job(&it, 0);
  rope_prepared* prepared = NULL;
  it.tensor.data = NULL;
  it.request.positions = NULL;
  CHECK_OK(rope_prepare(client, &it.request, "S", NULL, &prepared));
  CHECK(strlen(rope_prepared_id(prepared)) == 32);
  CHECK(rope_prepared_warning(prepared, rope_prepared_warning_count(prepared)) == NULL);

  const void* data[] = {it.values};
  void* outputs[] = {it.result};
  rope_values values = ROPE_VALUES_INIT;
  values.positions = &it.positions;
  values.data = data;
  values.outputs = outputs;
  values.tensor_count = 1;
  it.positions.start = 9;
  CHECK_OK(rope_rotate_prepared(client, prepared, &values, NULL, NULL));
  check_rotated(it.result, it.values, 9, 10000);

  /* Two of three tokens: the third stays as it was. */
  const int64_t length = 2;
  values.length = &length;
  it.positions.start = 40;
  float third[HEADS * DIM];
  memcpy(third, it.result + 2 * HEADS * DIM, sizeof(third));
  CHECK_OK(rope_rotate_prepared(client, prepared, &values, NULL, NULL));
  CHECK_NEAR(it.result[0], rotated(it.values, 0, 40, 10000), 1e-5);
  CHECK(memcmp(third, it.result + 2 * HEADS * DIM, sizeof(third)) == 0);

  rope_reply* reply = NULL;
  values.outputs = NULL;
  CHECK_OK(rope_rotate_prepared(client, prepared, &values, NULL, &reply));
  rope_result result = ROPE_RESULT_INIT;
  CHECK_OK(rope_reply_tensor(reply, 0, &result));
  CHECK(result.shape[0] == 2);
  CHECK(memcmp(result.data, it.result, (size_t)result.bytes) == 0);
  rope_reply_free(reply);

  CHECK_REFUSED(rope_rotate_prepared(client, prepared, &values, NULL, NULL), "tensors[0].output");
  values.positions = NULL;
  CHECK_REFUSED(rope_rotate_prepared(client, prepared, &values, NULL, &reply), "positions");
  rope_prepared_free(prepared);
}

static void test_arena(const char* target) {
  rope_connect_options options = ROPE_CONNECT_OPTIONS_INIT;
  options.arena_bytes = 1 << 20;
  rope_client* client = connect_to(target, &options);
  CHECK(rope_arena_capacity_bytes(client) == 1 << 20 && rope_arena_used_bytes(client) == 0);
  rope_slot* slot = NULL;
  CHECK_OK(rope_arena_allocate(client, COUNT * sizeof(float), &slot));
  CHECK(rope_slot_bytes(slot) == COUNT * sizeof(float) && (size_t)rope_slot_data(slot) % 64 == 0);
  CHECK(rope_arena_used_bytes(client) > 0);
  job it;
  start_job(&it, 5);
  memcpy(rope_slot_data(slot), it.values, sizeof(it.values));
  it.tensor.data = it.tensor.output = rope_slot_data(slot);
  CHECK_OK(rope_rotate(client, &it.request, NULL, NULL));
  check_rotated(rope_slot_data(slot), it.values, 5, 10000);
  CHECK_OK(rope_fence(client, NULL));

  rope_slot* other = NULL;
  rope_error* error = rope_arena_allocate(client, 1 << 21, &other);
  CHECK(rope_error_code(error) == ROPE_RESOURCE_EXHAUSTED && other == NULL);
  rope_error_free(error);
  rope_slot_free(slot);
  CHECK(rope_arena_used_bytes(client) == 0);
  CHECK_OK(rope_arena_allocate(client, 64, &slot));
  rope_close(client);
  memset(rope_slot_data(slot), 1, 64); /* a slot outlives its client */
  rope_slot_free(slot);
}

/* The rotation by tables, in float as a program would do it, beside the rotation of the library. */
static void test_tables(const rope_client* client) {
  job it;
  start_job(&it, 5);
  CHECK_OK(rope_rotate(client, &it.request, NULL, NULL));
  rope_tables_request request = ROPE_TABLES_REQUEST_INIT;
  request.rope = &it.rope;
  request.begin = 5;
  request.end = 5 + TOKENS;
  rope_tables* tables = NULL;
  CHECK_OK(rope_get_tables(client, &request, NULL, &tables));
  CHECK(strlen(rope_tables_config_id(tables)) > 0);
  CHECK(rope_tables_attention_factor(tables) == 1);
  CHECK(rope_tables_attention_factor_applied(tables) == 1);
  CHECK(rope_tables_seq_len(tables) == 5 + TOKENS && rope_tables_depends_on_seq_len(tables) == 0);
  CHECK(rope_tables_warning(tables, rope_tables_warning_count(tables)) == NULL);
  rope_array cosines = ROPE_ARRAY_INIT, sines = ROPE_ARRAY_INIT, none = ROPE_ARRAY_INIT;
  CHECK_OK(rope_tables_array(tables, ROPE_TABLES_COS, &cosines));
  CHECK_OK(rope_tables_array(tables, ROPE_TABLES_SIN, &sines));
  CHECK_OK(rope_tables_array(tables, ROPE_TABLES_TABLE, &none));
  CHECK(none.rank == 0 && none.bytes == 0);
  CHECK(cosines.rank == 2 && cosines.shape[0] == TOKENS && cosines.shape[1] == PAIRS);
  CHECK(cosines.dtype == ROPE_DTYPE_FP32 && cosines.bytes == TOKENS * PAIRS * 4);
  for (int i = 0; i < COUNT; ++i) {
    const int channel = i % DIM, pair = channel % PAIRS, head = i - channel;
    const int row = i / (HEADS * DIM) * PAIRS + pair;
    const float cosine = ((const float*)cosines.data)[row], sine = ((const float*)sines.data)[row];
    const float first = it.values[head + pair], second = it.values[head + pair + PAIRS];
    const float want =
        channel < PAIRS ? first * cosine - second * sine : second * cosine + first * sine;
    CHECK_NEAR(it.result[i], want, 1e-5);
  }
  CHECK_REFUSED(rope_tables_array(tables, 4, &none), "which");
  rope_tables_free(tables);

  /* Rows that move from 5 to 8, which turn by 3. */
  const int64_t id = 8, from = 5;
  request.begin = request.end = 0;
  request.position_ids = &id;
  request.position_id_count = 1;
  request.from_ids = &from;
  request.from_id_count = 1;
  request.dtype = ROPE_DTYPE_FP64;
  request.layout = ROPE_TABLE_LAYOUT_COMPLEX;
  CHECK_OK(rope_get_tables(client, &request, NULL, &tables));
  CHECK_OK(rope_tables_array(tables, ROPE_TABLES_TABLE, &none));
  CHECK(none.rank == 3 && none.shape[2] == 2 && none.dtype == ROPE_DTYPE_FP64);
  CHECK_NEAR(((const double*)none.data)[0], cos(3), 1e-13);
  CHECK_NEAR(((const double*)none.data)[1], sin(3), 1e-13);
  rope_tables_free(tables);
}

static void test_describe(const rope_client* client) {
  rope_spec rope = ROPE_SPEC_INIT;
  rope.model = "llama-3.1-8b";
  const int64_t position = 1;
  rope_describe_request request = ROPE_DESCRIBE_REQUEST_INIT;
  request.rope = &rope;
  request.positions = &position;
  request.position_count = 1;
  char* json = NULL;
  CHECK_OK(rope_describe(client, &request, NULL, &json));
  CHECK(strstr(json, "\"config_id\"") && strstr(json, "\"inv_freq\"") && strstr(json, "llama3"));
  rope_string_free(json);
}

static void test_fingerprint(const rope_client* client) {
  rope_spec rope = ROPE_SPEC_INIT;
  rope.model = "llama-3.1-8b";
  rope_key_source key = ROPE_KEY_SOURCE_INIT;
  key.rope = &rope;
  key.engine = "vllm@0.33.0";
  key.dtype = ROPE_DTYPE_BF16;
  rope_key_source other = key;
  other.engine = "llamacpp";
  const int64_t length = 8192;
  other.max_model_len = &length;
  rope_fingerprint_request request = ROPE_FINGERPRINT_REQUEST_INIT;
  request.key = &key;
  request.other = &other;
  char* json = NULL;
  CHECK_OK(rope_fingerprint(client, &request, NULL, &json));
  CHECK(strstr(json, "\"fingerprint\"") && strstr(json, "KEY_MATCH_REORDERED"));
  rope_string_free(json);
  other.engine = "vllm@9";
  rope_error* error = rope_fingerprint(client, &request, NULL, &json);
  CHECK_TEXT(rope_error_field(error), "other.engine");
  rope_error_free(error);
  request.key = NULL;
  error = rope_fingerprint(client, &request, NULL, &json);
  CHECK_TEXT(rope_error_field(error), "key");
  rope_error_free(error);
}

static void test_errors(const rope_client* client) {
  job it;
  start_job(&it, 0);
  it.rope.config_json = NULL;
  it.rope.model = "no-such-model";
  rope_error* error = rope_rotate(client, &it.request, NULL, NULL);
  CHECK(rope_error_code(error) == ROPE_NOT_FOUND);
  CHECK(rope_error_reason(error) == ROPE_REASON_MODEL_NOT_FOUND);
  CHECK_TEXT(rope_error_field(error), "rope.model");
  CHECK_TEXT(rope_code_name(rope_error_code(error)), "NOT_FOUND");
  CHECK_TEXT(rope_reason_name(rope_error_reason(error)), "MODEL_NOT_FOUND");
  CHECK(strstr(rope_error_message(error), "no-such-model") != NULL);
  CHECK(rope_error_retry_delay_ms(error) == 0 && rope_error_may_have_executed(error) == 0);
  rope_error_free(error);

  start_job(&it, (int64_t)1 << 31);
  error = rope_rotate(client, &it.request, NULL, NULL);
  CHECK(rope_error_code(error) == ROPE_OUT_OF_RANGE);
  CHECK(rope_error_reason(error) == ROPE_REASON_POSITION_OUT_OF_RANGE);
  rope_error_free(error);

  /* What the layer itself refuses. */
  start_job(&it, 0);
  CHECK_REFUSED(rope_rotate(NULL, &it.request, NULL, NULL), "client");
  CHECK_REFUSED(rope_rotate(client, NULL, NULL, NULL), "request");
  it.tensor.dtype = 99;
  CHECK_REFUSED(rope_rotate(client, &it.request, NULL, NULL), "tensors[0].dtype");
  start_job(&it, 0);
  it.request.operation = 99;
  CHECK_REFUSED(rope_rotate(client, &it.request, NULL, NULL), "request.operation");
  start_job(&it, 0);
  it.rope.pairing = 3;
  CHECK_REFUSED(rope_rotate(client, &it.request, NULL, NULL), "rope.pairing");
  start_job(&it, 0);
  it.tensor.shape = NULL;
  CHECK_REFUSED(rope_rotate(client, &it.request, NULL, NULL), "tensors[0].shape");
  start_job(&it, 0);
  it.tensor.output = NULL;
  CHECK_REFUSED(rope_rotate(client, &it.request, NULL, NULL), "tensors[0].output");
  start_job(&it, 0);
  it.request.tensors = NULL;
  CHECK_REFUSED(rope_rotate(client, &it.request, NULL, NULL), "tensors");
  start_job(&it, 0);
  it.request.tensor_count = 65;
  CHECK_REFUSED(rope_rotate(client, &it.request, NULL, NULL), "tensor_count");
  start_job(&it, 1);
  it.positions.starts = &it.positions.start;
  it.positions.start_count = 1;
  CHECK_REFUSED(rope_rotate(client, &it.request, NULL, NULL), "positions.start");

#ifndef ROPE_SANITIZE /* whose allocator ends the program */
  /* A count that no memory can hold ends in an error, not in an exception. */
  start_job(&it, 0);
  it.positions.position_ids = &it.positions.start;
  const size_t counts[] = {(size_t)1 << 45, (size_t)1 << 62};
  for (int i = 0; i < 2; ++i) {
    it.positions.position_id_count = counts[i];
    error = rope_rotate(client, &it.request, NULL, NULL);
    CHECK(rope_error_code(error) == ROPE_RESOURCE_EXHAUSTED);
    CHECK_TEXT(rope_error_message(error), "not enough memory");
    rope_error_free(error);
  }
#endif

  start_job(&it, 0);
  it.rope.struct_size = SIZE_MAX - 7; /* never read */
  CHECK_REFUSED(rope_rotate(client, &it.request, NULL, NULL), "rope.struct_size");
  start_job(&it, 0);
  rope_call_options call = ROPE_CALL_OPTIONS_INIT;
  const rope_metadata metadata[] = {{"x-trace-bin", "\0\1", 2}, {NULL, "v", 0}};
  call.metadata = metadata;
  call.metadata_count = 1;
  call.attempts_max = 1;
  CHECK_OK(rope_rotate(client, &it.request, &call, NULL));
  call.metadata_count = 2;
  CHECK_REFUSED(rope_rotate(client, &it.request, &call, NULL), "metadata[1]");
  const rope_metadata binary = {"x-text", "a\0b", 3};
  call.metadata = &binary;
  call.metadata_count = 1;
  CHECK_REFUSED(rope_rotate(client, &it.request, &call, NULL), "metadata[0]");
  call.metadata_count = 0;
  call.attempts_max = -1;
  CHECK_REFUSED(rope_rotate(client, &it.request, &call, NULL), "attempts_max");

  rope_client* none = NULL;
  CHECK_REFUSED(rope_connect(NULL, NULL, &none), "target");
  CHECK_REFUSED(rope_connect("inproc:", NULL, NULL), "client");
  CHECK_REFUSED(rope_connect("https://", NULL, &none), "target");
  rope_connect_options options = ROPE_CONNECT_OPTIONS_INIT;
  options.timeout_ms = 200;
  error = rope_connect("unix:/nowhere/rope.sock", &options, &none);
  CHECK(rope_error_code(error) == ROPE_UNAVAILABLE && none == NULL);
  rope_error_free(error);
  options.transports = 8;
  CHECK_REFUSED(rope_connect("inproc:", &options, &none), "transports");
  options.transports = 0;
  options.max_message_bytes = -1;
  CHECK_REFUSED(rope_connect("inproc:", &options, &none), "max_message_bytes");

  options = (rope_connect_options)ROPE_CONNECT_OPTIONS_INIT;
  options.tls_ca_file = "/nowhere";
  CHECK_REFUSED(rope_connect("127.0.0.1:1", &options, &none), "tls.ca_file");
  options.tls_ca_file = NULL;
  options.tls_cert_file = "/nowhere";
  CHECK_REFUSED(rope_connect("127.0.0.1:1", &options, &none), "tls.cert_file");
  options.tls_cert_file = NULL;
  options.tls = 1;
  CHECK_REFUSED(rope_connect("unix:/nowhere", &options, &none), "tls");
  options.tls = 2;
  CHECK_REFUSED(rope_connect("inproc:", &options, &none), "options.tls");
  options.tls = 0;
  options.token = "a b";
  CHECK_REFUSED(rope_connect("127.0.0.1:1", &options, &none), "token");
  options.token = NULL;
  options.token_file = "/nowhere";
  CHECK_REFUSED(rope_connect("127.0.0.1:1", &options, &none), "token_file");
  options.token_file = NULL;
  options.reserved = 1;
  CHECK_REFUSED(rope_connect("inproc:", &options, &none), "reserved");

  CHECK(rope_error_code(NULL) == ROPE_OK);
  CHECK_TEXT(rope_error_message(NULL), "");
  CHECK_TEXT(rope_error_field(NULL), "");
  rope_error_free(NULL);
}

/* Models of an engine's own, and options of the engine that "inproc:" starts. */
static void test_engine_options(void) {
  rope_model_config models[] = {ROPE_MODEL_CONFIG_INIT, ROPE_MODEL_CONFIG_INIT};
  models[0].name = "first";
  models[0].config_json = kConfig;
  models[1].name = "second";
  models[1].config_json = kOtherConfig;
  rope_engine_options engine = ROPE_ENGINE_OPTIONS_INIT;
  engine.threads = 1;
  engine.models = models;
  engine.model_count = 2;
  CHECK_OK(rope_set_in_process_engine(&engine));
  rope_client* clients[2] = {NULL, NULL};
  CHECK_OK(rope_connect_in_process(&engine, NULL, &clients[0]));
  CHECK_OK(rope_connect("inproc:", NULL, &clients[1]));
  for (int i = 0; i < 2; ++i) {
    job it;
    start_job(&it, 5);
    it.rope.config_json = NULL;
    it.rope.model = "second";
    CHECK_OK(rope_rotate(clients[i], &it.request, NULL, NULL));
    check_rotated(it.result, it.values, 5, 500);
    CHECK_TEXT(rope_transport_name(clients[i]), "in_process");
    rope_close(clients[i]);
  }
  models[1].config_json = NULL;
  CHECK_REFUSED(rope_connect_in_process(&engine, NULL, &clients[0]),
                "engine.models[1].config_json");
  CHECK_OK(rope_set_in_process_engine(NULL));
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  CHECK(strlen(rope_version()) >= strlen("0.9.0"));
  rope_client* client = connect_to(argv[1], NULL);
  CHECK(strlen(rope_transport_name(client)) > 0);
  test_rotate(client);
  test_fields(client);
  test_operations(client);
  test_reposition(client);
  test_prepared(client);
  test_tables(client);
  test_describe(client);
  test_fingerprint(client);
  test_errors(client);
  test_arena(argv[1]);
  printf("%s: %s\n", argv[1], rope_transport_name(client));
  rope_close(client);
  if (strcmp(argv[1], "in_process") == 0) test_engine_options();
  return 0;
}
