/* Every call of the C API, from a program in C11. Numbers are compared with cos and sin of libm.
   Usage: c_api_test TARGET, which is embedded, inproc:, HOST:PORT or unix:PATH. */
#include <stddef.h>

#include "check.h"

/* The published layout of DLPack. */
_Static_assert(sizeof(DLDataType) == 4 && sizeof(DLDevice) == 8 && sizeof(DLTensor) == 48, "");
_Static_assert(offsetof(DLTensor, dtype) == 20 && offsetof(DLTensor, byte_offset) == 40, "");
_Static_assert(offsetof(DLManagedTensor, deleter) == 56, "");
_Static_assert(offsetof(DLManagedTensorVersioned, flags) == 24, "");
_Static_assert(offsetof(DLManagedTensorVersioned, dl_tensor) == 32, "");

enum { TOKENS = 3, HEADS = 2, DIM = 8, PAIRS = DIM / 2, COUNT = TOKENS * HEADS * DIM };
enum { ARGUMENTS_MAX = 8 };

/* Parts of requests, which say ' for ". */
#define CONFIG(theta)                                                                 \
  "'rope': {'config_json': '{\\'model_type\\': \\'llama\\', \\'rope_theta\\': " theta \
  ", \\'head_dim\\': 8}'}"
#define ARRAY "'array': {'dtype': 'DTYPE_FP32', 'shape': [3, 2, 8]}"
#define Q "{'role': 'ROLE_Q', 'layout': 'SHD', " ARRAY "}"
#define K "{'role': 'ROLE_K', 'layout': 'SHD', " ARRAY "}"
#define ROTATE(fields, tensors) \
  "{'rotate': {" CONFIG("10000.0") ", " fields "'tensors': [" tensors "]}}"

static const char* quoted(const char* text) {
  static char result[2048];
  CHECK(strlen(text) < sizeof(result));
  strcpy(result, text);
  for (char* c = result; *c != 0; ++c) {
    if (*c == '\'') *c = '"';
  }
  return result;
}

static rope_client* connect_to(const char* target, const char* options) {
  rope_client* client = NULL;
  const char* text = options == NULL ? NULL : quoted(options);
  CHECK_OK(strcmp(target, "embedded") == 0 ? rope_connect_embedded(text, &client)
                                           : rope_connect(target, text, &client));
  return client;
}

static rope_prepared* prepare(const rope_client* client, const char* request) {
  rope_prepared* prepared = NULL;
  CHECK_OK(rope_prepare(client, quoted(request), NULL, &prepared));
  return prepared;
}

/* A tensor with a shape of its own. */
typedef struct {
  DLTensor tensor;
  int64_t shape[4];
  int64_t strides[4];
} array;

static array array_of(void* data, uint8_t code, uint8_t bits, int32_t rank, const int64_t* shape) {
  array it;
  memset(&it, 0, sizeof(it));
  it.tensor.data = data;
  it.tensor.device.device_type = kDLCPU;
  it.tensor.ndim = rank;
  it.tensor.dtype.code = code;
  it.tensor.dtype.bits = bits;
  it.tensor.dtype.lanes = 1;
  for (int i = 0; i < rank; ++i) it.shape[i] = shape[i];
  return it;
}

static array floats(float* data, int64_t tokens) {
  const int64_t shape[] = {tokens, HEADS, DIM};
  return array_of(data, kDLFloat, 32, 3, shape);
}

static array numbers(int64_t* data, int64_t count) {
  return array_of(data, kDLInt, 64, count > 0, &count);
}

static array number(int64_t* data) {
  return numbers(data, 0);
}

typedef struct {
  const char* name;
  array* array;
} named;

/* Rotates with the arguments up to a null name. */
static rope_error* rotate(const rope_prepared* prepared, named* given) {
  rope_argument arguments[ARGUMENTS_MAX];
  size_t count = 0;
  for (; given[count].name != NULL; ++count) {
    array* it = given[count].array;
    it->tensor.shape = it->shape;
    if (it->strides[0] != 0) it->tensor.strides = it->strides;
    arguments[count].name = given[count].name;
    arguments[count].tensor = &it->tensor;
  }
  return rope_rotate(prepared, arguments, count, NULL);
}
#define ARGUMENTS(...) ((named[]){__VA_ARGS__, {NULL, NULL}})

static float values[COUNT], result[COUNT], other[COUNT];

static void start(void) {
  for (int i = 0; i < COUNT; ++i) {
    values[i] = (float)(i % 23) - 11;
    result[i] = other[i] = NAN;
  }
}

/* The rotation in double, of half pairs. */
static double rotated(const float* from, int index, double position, double theta) {
  const int channel = index % DIM, pair = channel % PAIRS;
  const double angle = position * pow(theta, -2.0 * pair / DIM);
  const int head = index - channel;
  const double first = from[head + pair], second = from[head + pair + PAIRS];
  if (channel < PAIRS) return first * cos(angle) - second * sin(angle);
  return second * cos(angle) + first * sin(angle);
}

static void check_rotated(const float* got, const float* from, int64_t position, double theta) {
  for (int i = 0; i < COUNT; ++i) {
    const double its = (double)(position + i / (HEADS * DIM));
    CHECK_NEAR(got[i], rotated(from, i, its, theta), 1e-5);
  }
}

/* One tensor rotated to `result` at a start. */
static rope_error* rotate_at(const rope_prepared* prepared, float* from, int64_t position) {
  array q = floats(from, TOKENS), output = floats(result, TOKENS), at = number(&position);
  return rotate(prepared,
                ARGUMENTS({"tensors[0]", &q}, {"tensors[0].output", &output}, {"positions", &at}));
}

static void test_rotate(const rope_client* client) {
  start();
  rope_prepared* prepared = prepare(client, ROTATE("", Q "," K));
  const char* text = rope_prepared_text(prepared);
  CHECK(strstr(text, "\"prepared_id\": \"") != NULL && strstr(text, "\"warnings\"") != NULL);
  /* q to memory of its own, k in place; arguments in any order. */
  int64_t position = 5;
  memcpy(other, values, sizeof(other));
  array at = number(&position), q = floats(values, TOKENS), k = floats(other, TOKENS);
  array output = floats(result, TOKENS);
  CHECK_OK(
      rotate(prepared, ARGUMENTS({"positions", &at}, {"k", &k}, {"q.output", &output}, {"q", &q})));
  check_rotated(result, values, 5, 10000);
  check_rotated(other, values, 5, 10000);
  rope_prepared_free(prepared);
}

/* Positions of each token, of 32 bits; a byte offset; strides in and out. */
static void test_arrays(const rope_client* client) {
  start();
  rope_prepared* prepared = prepare(client, ROTATE("", Q));
  int32_t ids[] = {7, 0, 100000};
  const int64_t three[] = {3};
  array at = array_of(ids, kDLInt, 32, 1, three), q = floats(values, TOKENS);
  float behind[4 + COUNT];
  memcpy(behind + 4, values, sizeof(values));
  q.tensor.data = behind;
  q.tensor.byte_offset = 4 * sizeof(float);
  array output = floats(result, TOKENS);
  CHECK_OK(rotate(prepared, ARGUMENTS({"q", &q}, {"q.output", &output}, {"positions", &at})));
  for (int i = 0; i < COUNT; ++i) {
    CHECK_NEAR(result[i], rotated(values, i, ids[i / (HEADS * DIM)], 10000), 1e-5);
  }
  const int64_t packed[] = {HEADS * DIM, DIM, 1};
  memcpy(q.strides, packed, sizeof(packed));
  CHECK_OK(rotate(prepared, ARGUMENTS({"q", &q}, {"q.output", &output}, {"positions", &at})));
  rope_prepared_free(prepared);

  /* Heads outermost in memory, in place. */
  prepared =
      prepare(client, ROTATE("'output': {'strides': [{'values': [8, 24, 1]}]}, ",
                             "{'role': 'ROLE_Q', 'layout': 'SHD', 'array': {'dtype': 'DTYPE_FP32', "
                             "'shape': [3, 2, 8], 'strides': [8, 24, 1]}}"));
  const int64_t strides[] = {DIM, TOKENS * DIM, 1};
  for (int t = 0; t < TOKENS; ++t) {
    for (int h = 0; h < HEADS; ++h) {
      memcpy(other + (h * TOKENS + t) * DIM, values + (t * HEADS + h) * DIM, DIM * sizeof(float));
    }
  }
  array k = floats(other, TOKENS);
  memcpy(k.strides, strides, sizeof(strides));
  CHECK_OK(rotate(prepared, ARGUMENTS({"q", &k}, {"positions", &at})));
  for (int t = 0; t < TOKENS; ++t) {
    for (int h = 0; h < HEADS; ++h) {
      CHECK(memcmp(other + (h * TOKENS + t) * DIM, result + (t * HEADS + h) * DIM,
                   DIM * sizeof(float)) == 0);
    }
  }
  CHECK_REFUSED(rotate(prepared, ARGUMENTS({"q", &output}, {"positions", &at})), "q.strides");
  rope_prepared_free(prepared);
}

/* Another type and layout of the result; a norm. */
static void test_fields(const rope_client* client) {
  start();
  rope_prepared* prepared =
      prepare(client, ROTATE("'output': {'dtype': 'DTYPE_BF16', 'layouts': ['HSD']}, ", K));
  static unsigned short halves[COUNT];
  const int64_t shape[] = {HEADS, TOKENS, DIM};
  int64_t position = 0;
  array k = floats(values, TOKENS), output = array_of(halves, kDLBfloat, 16, 3, shape);
  array at = number(&position);
  CHECK_OK(rotate(prepared, ARGUMENTS({"k", &k}, {"k.output", &output}, {"positions", &at})));
  CHECK(halves[0] == 0xc130 && halves[1] == 0xc120); /* position 0: -11, -10 */
  CHECK_REFUSED(rotate(prepared, ARGUMENTS({"k", &k}, {"positions", &at})), "tensors[0].output");
  array wrong = floats(result, TOKENS);
  CHECK_REFUSED(rotate(prepared, ARGUMENTS({"k", &k}, {"k.output", &wrong}, {"positions", &at})),
                "k.output.dtype");
  rope_prepared_free(prepared);

  prepared = prepare(client, ROTATE("",
                                    "{'role': 'ROLE_Q', 'layout': 'SHD', 'norm': {'eps': "
                                    "1e-12, 'weight': {'dtype': 'DTYPE_FP32', 'numbers': "
                                    "[2, 2, 2, 2, 2, 2, 2, 2]}}, " ARRAY "}"));
  for (int i = 0; i < COUNT; ++i) values[i] = 3;
  CHECK_OK(rotate_at(prepared, values, 3));
  CHECK_NEAR(result[0], 2 * (cos(3) - sin(3)), 1e-5); /* threes have the norm 1 */
  rope_prepared_free(prepared);

  prepared = prepare(client, ROTATE("",
                                    "{'layout': 'SHD', 'head_ranges': [{'role': 'ROLE_Q', "
                                    "'end': 1}], " ARRAY "}"));
  start();
  CHECK_OK(rotate_at(prepared, values, 3));
  CHECK_NEAR(result[0], rotated(values, 0, 3, 10000), 1e-5);
  CHECK(memcmp(result + DIM, values + DIM, DIM * sizeof(float)) == 0);
  rope_prepared_free(prepared);
}

static void test_operations(const rope_client* client) {
  start();
  rope_prepared* prepared = prepare(client, ROTATE("", Q));
  CHECK_OK(rotate_at(prepared, values, 5));
  rope_prepared_free(prepared);
  memcpy(other, result, sizeof(other));
  const char* inverses[] = {ROTATE("'operation': 'OPERATION_INVERSE', ", Q),
                            ROTATE("'operation': 'OPERATION_BACKWARD', ", Q)};
  for (int i = 0; i < 2; ++i) {
    prepared = prepare(client, inverses[i]);
    CHECK_OK(rotate_at(prepared, other, 5));
    for (int c = 0; c < COUNT; ++c) CHECK_NEAR(result[c], values[c], 1e-5);
    rope_prepared_free(prepared);
  }
  /* From positions 5, 6, 7 to 1000 and to another embedding. */
  prepared = prepare(client, "{'rotate': {" CONFIG(
                                 "500.0") ", 'operation': 'OPERATION_REPOSITION', 'reposition': "
                                          "{'from_rope': {'config_json': "
                                          "'{\\'model_type\\': \\'llama\\', \\'rope_theta\\': "
                                          "10000.0, \\'head_dim\\': 8}'}}, 'tensors': [" K "]}}");
  int64_t ids[] = {5, 6, 7}, to = 1000;
  array k = floats(other, TOKENS), at = number(&to), from = numbers(ids, TOKENS);
  CHECK_OK(rotate(prepared, ARGUMENTS({"k", &k}, {"positions", &at}, {"reposition.from", &from})));
  check_rotated(other, values, 1000, 500);
  rope_prepared_free(prepared);
}

/* From 1, 2, 3 by 4, with the caller's own table. */
static void test_tables(const rope_client* client) {
  start();
  rope_prepared* prepared = prepare(client, ROTATE("", Q));
  CHECK_OK(rotate_at(prepared, values, 1));
  rope_prepared_free(prepared);
  static float table[8][DIM];
  for (int i = 0; i < 8 * PAIRS; ++i) {
    const int position = i / PAIRS, pair = i % PAIRS;
    const double angle = position * pow(10000, -2.0 * pair / DIM);
    table[position][pair] = (float)cos(angle);
    table[position][PAIRS + pair] = (float)sin(angle);
  }
  prepared = prepare(client,
                     "{'rotate': {'rope': {'pairing': 'PAIRING_HALF'}, 'operation': "
                     "'OPERATION_REPOSITION', 'reposition': {}, 'rows': {'cos_sin': {'dtype': "
                     "'DTYPE_FP32', 'shape': [8, 8]}}, 'tensors': [" K "]}}");
  const int64_t shape[] = {8, DIM};
  int64_t distance = 4;
  array k = floats(result, TOKENS), rows = array_of(table, kDLFloat, 32, 2, shape);
  array by = number(&distance);
  CHECK_OK(rotate(prepared, ARGUMENTS({"k", &k}, {"rows.cos_sin", &rows}, {"reposition.by", &by})));
  check_rotated(result, values, 5, 10000);
  rows.shape[0] = 7;
  CHECK_REFUSED(
      rotate(prepared, ARGUMENTS({"k", &k}, {"rows.cos_sin", &rows}, {"reposition.by", &by})),
      "rows.cos_sin");
  rope_prepared_free(prepared);
}

/* Three tokens of a pool of four pages of two; fp8 as uint8. */
static void test_pages(const rope_client* client) {
  start();
  rope_prepared* prepared =
      prepare(client, ROTATE("",
                             "{'role': 'ROLE_K', 'layout': 'SHD', 'paged_tokens': {'block_size': "
                             "2, 'page_stride': 32, 'token_stride': 16, 'head_stride': 8, "
                             "'pool_elements': 128, 'slots': {'dtype': 'DTYPE_INT64', 'shape': "
                             "[3]}}, " ARRAY "}"));
  static float pool[8 * HEADS * DIM];
  int64_t its[] = {6, 1, 4}, position = 5;
  for (int i = 0; i < COUNT; ++i) {
    pool[its[i / (HEADS * DIM)] * HEADS * DIM + i % (HEADS * DIM)] = values[i];
  }
  const int64_t shape[] = {4, 2, HEADS, DIM};
  array k = array_of(pool, kDLFloat, 32, 4, shape), slots = numbers(its, 3);
  array at = number(&position);
  named* const given = ARGUMENTS({"k", &k}, {"k.paged_tokens.slots", &slots}, {"positions", &at});
  if (strcmp(rope_transport(client), "in_process") != 0) {
    CHECK_REFUSED(rotate(prepared, given), "tensors[0].data");
  } else {
    CHECK_OK(rotate(prepared, given));
    for (int i = 0; i < COUNT; ++i) {
      result[i] = pool[its[i / (HEADS * DIM)] * HEADS * DIM + i % (HEADS * DIM)];
    }
    check_rotated(result, values, 5, 10000);
  }
  k.shape[0] = 3;
  CHECK_REFUSED(rotate(prepared, given), "k.shape");
  rope_prepared_free(prepared);

  prepared = prepare(client, ROTATE("",
                                    "{'role': 'ROLE_K', 'layout': 'SHD', 'array': {'dtype': "
                                    "'DTYPE_FP8_E4M3', 'shape': [3, 2, 8]}}"));
  static unsigned char ones[COUNT];
  memset(ones, 0x38, sizeof(ones));
  const int64_t tokens[] = {TOKENS, HEADS, DIM};
  array bytes = array_of(ones, kDLUInt, 8, 3, tokens);
  position = 0;
  CHECK_OK(rotate(prepared, ARGUMENTS({"k", &bytes}, {"positions", &at})));
  CHECK(ones[0] == 0x38 && ones[COUNT - 1] == 0x38);
  rope_prepared_free(prepared);
}

/* Two of three tokens: the third stays as it was. And none. */
static void test_open_axis(const rope_client* client) {
  start();
  rope_prepared* prepared = prepare(
      client, "{'open_axis': 'S', 'rotate': {" CONFIG("10000.0") ", 'tensors': [" Q "," K "]}}");
  int64_t position = 40;
  array at = number(&position), q = floats(values, 2), output = floats(result, 2);
  array k = floats(other, 2), three = floats(other, 3), four = floats(values, 4);
  CHECK_OK(
      rotate(prepared, ARGUMENTS({"q", &q}, {"q.output", &output}, {"k", &k}, {"positions", &at})));
  CHECK_NEAR(result[0], rotated(values, 0, 40, 10000), 1e-5);
  CHECK(isnan(result[2 * HEADS * DIM]));
  CHECK_REFUSED(rotate(prepared, ARGUMENTS({"q", &q}, {"k", &three})), "k.shape");
  CHECK_REFUSED(rotate(prepared, ARGUMENTS({"q", &four}, {"k", &three})), "q.shape");
  array no_q = floats(NULL, 0), no_k = no_q;
  CHECK_OK(rotate(prepared, ARGUMENTS({"q", &no_q}, {"k", &no_k}, {"positions", &at})));
  rope_prepared_free(prepared);
}

/* Of packed sequences, and of context parallelism. */
static void test_positions(const rope_client* client) {
  start();
  rope_prepared* prepared =
      prepare(client, ROTATE("", "{'role': 'ROLE_Q', 'layout': 'THD', " ARRAY "}"));
  int64_t starts[] = {9, 50}, ends[] = {0, 1, 3}, length = 3, two = 2, zero = 0;
  array q = floats(values, TOKENS), output = floats(result, TOKENS), by = numbers(starts, 2);
  array cut = numbers(ends, 3), final = numbers(&length, 1), ranks = number(&two);
  array rank = number(&zero), at = number(&zero);
  CHECK_OK(
      rotate(prepared, ARGUMENTS({"q", &q}, {"q.output", &output}, {"positions.starts", &by},
                                 {"positions.cu_seqlens", &cut}, {"positions.seq_lens", &final})));
  const int64_t want[] = {9, 50, 51};
  for (int i = 0; i < COUNT; ++i) {
    CHECK_NEAR(result[i], rotated(values, i, (double)want[i / (HEADS * DIM)], 10000), 1e-5);
  }
  /* An odd number of tokens is no two chunks. */
  rope_error* error =
      rotate(prepared, ARGUMENTS({"q", &q}, {"positions", &at}, {"positions.cp_size", &ranks},
                                 {"positions.cp_rank", &rank}));
  CHECK_TEXT(rope_error_code(error), "INVALID_ARGUMENT");
  rope_error_free(error);
  rope_prepared_free(prepared);
}

static void test_refused_arguments(const rope_client* client) {
  start();
  rope_prepared* prepared = prepare(client, ROTATE("", Q));
  static const struct {
    const char* name;
    const char* field;
  } names[] = {{"k", "k"},
               {"q.input", "q.input"},
               {"tensors[1]", "tensors[1]"},
               {"tensors[0", "tensors[0"},
               {"positions.page", "positions.page"},
               {"reposition.from.page", "reposition.from.page"},
               {"Q", "Q"},
               {"q", "q"}, /* given twice */
               {"positions", "positions"},
               {"positions.cp_size", "positions.cp_size.ndim"}};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
    int64_t position = 0;
    array q = floats(values, TOKENS), at = number(&position);
    array wrong = names[i].name[0] == 'p' || names[i].name[0] == 'r' ? numbers(&position, 1) : q;
    if (strcmp(names[i].name, "positions") == 0) wrong = at;
    CHECK_REFUSED(
        rotate(prepared, ARGUMENTS({"q", &q}, {"positions", &at}, {names[i].name, &wrong})),
        names[i].field);
  }
  static const struct {
    const char* field;
    int32_t device, rank;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t offset, tokens;
  } tensors[] = {{"q.device", kDLROCM, 3, kDLFloat, 32, 1, 0, 3},
                 {"q.dtype", kDLCPU, 3, kDLInt, 32, 1, 0, 3},
                 {"q.dtype", kDLCPU, 3, kDLFloat, 16, 1, 0, 3}, /* not as prepared */
                 {"q.dtype.lanes", kDLCPU, 3, kDLFloat, 32, 2, 0, 3},
                 {"q.ndim", kDLCPU, 0, kDLFloat, 32, 1, 0, 3},
                 {"q.ndim", kDLCPU, 9, kDLFloat, 32, 1, 0, 3},
                 {"q.shape", kDLCPU, 2, kDLFloat, 32, 1, 0, 3},
                 {"q.shape", kDLCPU, 3, kDLFloat, 32, 1, 0, 2},
                 {"q.shape[0]", kDLCPU, 3, kDLFloat, 32, 1, 0, -1},
                 {"q.data", kDLCPU, 3, kDLFloat, 32, 1, 2, 3}};
  for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); ++i) {
    array q = floats(values, tensors[i].tokens);
    q.tensor.device.device_type = (DLDeviceType)tensors[i].device;
    q.tensor.ndim = tensors[i].rank;
    q.tensor.dtype = (DLDataType){tensors[i].code, tensors[i].bits, tensors[i].lanes};
    q.tensor.byte_offset = (uint64_t)tensors[i].offset;
    CHECK_REFUSED(rotate(prepared, ARGUMENTS({"q", &q})), tensors[i].field);
  }
  array q = floats(values, TOKENS), none = floats(NULL, TOKENS), gpu = q, other = q;
  gpu.tensor.device.device_type = other.tensor.device.device_type = kDLCUDA;
  other.tensor.device.device_id = 1;
  CHECK_REFUSED(rotate(prepared, ARGUMENTS({"q", &q}, {"q.output", &gpu})), "q.device");
  CHECK_REFUSED(rotate(prepared, ARGUMENTS({"q", &gpu}, {"q.output", &other})), "q.output.device");
  CHECK_REFUSED(rotate(prepared, ARGUMENTS({"q", &none})), "q.data");
  CHECK_REFUSED(rotate(prepared, ARGUMENTS({"positions", &q})), "positions.dtype");
  const int64_t backwards[] = {-HEADS * DIM, DIM, 1}, gaps[] = {2 * HEADS * DIM, DIM, 1};
  memcpy(q.strides, backwards, sizeof(backwards));
  CHECK_REFUSED(rotate(prepared, ARGUMENTS({"q", &q})), "q.strides[0]");
  memcpy(q.strides, gaps, sizeof(gaps));
  CHECK_REFUSED(rotate(prepared, ARGUMENTS({"q", &q})), "q.strides");
  const rope_argument nameless = {NULL, &q.tensor}, empty = {"q", NULL};
  CHECK_REFUSED(rope_rotate(prepared, &nameless, 1, NULL), "arguments.name");
  CHECK_REFUSED(rope_rotate(prepared, &empty, 1, NULL), "q");
  CHECK_REFUSED(rope_rotate(prepared, NULL, 1, NULL), "arguments");
  CHECK_REFUSED(rope_rotate(prepared, NULL, 0, &q), "stream");
  CHECK_REFUSED(rope_rotate(NULL, NULL, 0, NULL), "prepared");
  CHECK_ERROR(rotate_at(prepared, values, (int64_t)1 << 31), "OUT_OF_RANGE",
              "POSITION_OUT_OF_RANGE", "positions.start");
  rope_prepared_free(prepared);
}

static void test_refused_requests(const rope_client* client) {
  static const struct {
    const char* request;
    const char* field;
  } requests[] = {
      {"", "request"},
      {"{'rotate': 3}", "request"},
      {"{'rotate': {'rope': {'mode': 'llama'}}}", "request"},
      {ROTATE("'positions': {'start': 1}, ", Q), "rotate.positions"},
      {ROTATE("'request_id': 'mine', ", Q), "rotate.request_id"},
      {ROTATE("'output': {'in_place': true}, ", Q), "rotate.output.in_place"},
      {ROTATE("", "{'role': 'ROLE_Q', 'layout': 'SHD', 'array': {'shape': [1, 1, 8]}}"),
       "rotate.tensors[0].array.dtype"},
      {ROTATE("", "{'layout': 'SHD', " ARRAY "}"), "rotate.tensors[0].role"},
      {ROTATE("", ""), "rotate.tensors"},
      {"{'open_axis': 'H', 'rotate': {" CONFIG("10000.0") ", 'tensors': [" Q "]}}", "open_axis"},
  };
  rope_prepared* none = NULL;
  for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); ++i) {
    CHECK_REFUSED(rope_prepare(client, quoted(requests[i].request), NULL, &none),
                  requests[i].field);
  }
  CHECK_ERROR(rope_prepare(client,
                           quoted("{'rotate': {'rope': {'model': 'no-such-model'}, "
                                  "'tensors': [" Q "]}}"),
                           NULL, &none),
              "NOT_FOUND", "MODEL_NOT_FOUND", "rotate.rope.model");
  CHECK_REFUSED(rope_prepare(NULL, "{}", NULL, &none), "client");
  CHECK_REFUSED(rope_prepare(client, NULL, NULL, &none), "request");
  CHECK_REFUSED(rope_prepare(client, "{}", NULL, NULL), "prepared");
  CHECK(none == NULL);
}

/* A method, its request, and what its answer has. */
static void test_calls(const rope_client* client) {
  static const struct {
    const char *method, *request, *want;
  } calls[] = {
      {"Describe", "{'rope': {'model': 'llama-3.1-8b'}, 'positions': [1]}", "\"config_id\""},
      {"Fingerprint",
       "{'key': {'rope': {'model': 'llama-3.1-8b'}, 'engine': 'vllm@0.33.0', 'dtype': "
       "'DTYPE_BF16'}, 'other': {'rope': {'model': 'llama-3.1-8b'}, 'engine': 'llamacpp', "
       "'dtype': 'DTYPE_BF16', 'max_model_len': 8192}}",
       "KEY_MATCH_REORDERED"},
      /* cos 0, which is 1, as bytes of a double in base64 */
      {"GetTables",
       "{'rope': {'model': 'qwen3-8b'}, 'positions': {'range': {'end': 1}}, 'dtype': "
       "'DTYPE_FP64', 'layout': 'TABLE_LAYOUT_COMPLEX'}",
       "AAAAAAAA8D8AAAAAAAAAAAAA"},
      {"ListModels", "{}", "\"qwen3-8b\""},
      {"GetServerInfo", "{}", "\"instance_id\""},
      {"ListConnections", "{}", "\"owner\""},
      {"ListRegions", "{}", "\"regions\""},
      {"Rotate",
       "{'rope': {'config': {'head_dim': 2}, 'pairing': 'PAIRING_HALF'}, 'positions': {'start': "
       "0}, 'tensors': [{'role': 'ROLE_Q', 'layout': 'SD', 'array': {'dtype': 'DTYPE_FP32', "
       "'shape': [1, 2], 'numbers': [1, 2]}}]}",
       "\"numbers\""},
  };
  for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); ++i) {
    char* reply = NULL;
    CHECK_OK(rope_call(client, calls[i].method, quoted(calls[i].request), NULL, &reply));
    if (strstr(reply, calls[i].want) == NULL) {
      fprintf(stderr, "%s: no %s in %s\n", calls[i].method, calls[i].want, reply);
      exit(1);
    }
    rope_text_free(reply);
  }
  char* reply = NULL;
  CHECK_REFUSED(rope_call(client, "RotateStream", "{}", NULL, &reply), "method");
  CHECK_REFUSED(rope_call(client, "Turn", "{}", NULL, &reply), "method");
  CHECK_REFUSED(rope_call(client, "Describe", "{", NULL, &reply), "request");
  CHECK_REFUSED(
      rope_call(client, "Describe", quoted("{'rope': {'model': 'm', 'x': 1}}"), NULL, &reply),
      "request");
  CHECK_REFUSED(rope_call(client, "Describe", "{}", quoted("{'attempts_max': -1}"), &reply),
                "options.attempts_max");
  CHECK_REFUSED(rope_call(client, "Describe", "{}", quoted("{'metadata': {'x': 1}}"), &reply),
                "options.metadata");
  CHECK_OK(rope_call(client, "ListModels", "{}",
                     quoted("{'timeout_ms': 10000, 'attempts_max': 1, 'metadata': {'x-a': 'b'}}"),
                     &reply));
  rope_text_free(reply);
  CHECK(rope_error_retry_delay_ms(NULL) == 0 && rope_error_may_have_executed(NULL) == 0);
}

static void test_memory(const char* target) {
  rope_client* client = connect_to(target, "{'arena_bytes': 1048576}");
  rope_memory* memory = NULL;
  CHECK_OK(rope_allocate(client, sizeof(values), &memory));
  float* shared = rope_memory_data(memory);
  CHECK((size_t)shared % 64 == 0);
  start();
  memcpy(shared, values, sizeof(values));
  rope_prepared* prepared = prepare(client, ROTATE("", Q));
  int64_t position = 5;
  array q = floats(shared, TOKENS), at = number(&position);
  CHECK_OK(rotate(prepared, ARGUMENTS({"q", &q}, {"positions", &at})));
  check_rotated(shared, values, 5, 10000);
  CHECK_OK(rope_fence(client, NULL));
  CHECK_REFUSED(rope_fence(client, "{\"timeout\": 1}"), "options.timeout");
  rope_memory* too_large = NULL;
  rope_error* error = rope_allocate(client, 1 << 21, &too_large);
  CHECK_TEXT(rope_error_code(error), "RESOURCE_EXHAUSTED");
  CHECK(too_large == NULL);
  rope_error_free(error);
  rope_close(client);
  CHECK_OK(rotate(prepared, ARGUMENTS({"q", &q}, {"positions", &at}))); /* keeps its client */
  rope_prepared_free(prepared);
  memset(shared, 1, 64); /* memory outlives its client */
  rope_memory_free(memory);
}

static void test_options(void) {
  static const struct {
    const char *target, *options, *field;
  } refused[] = {
      {"https://", NULL, "target"},
      {"inproc:", "[]", "options"},
      {"inproc:", "{'timeout': 1}", "options.timeout"},
      {"inproc:", "{'timeout_ms': '1'}", "options.timeout_ms"},
      {"inproc:", "{'timeout_ms': 1.5}", "options.timeout_ms"},
      {"inproc:", "{'spin_us': -1}", "options.spin_us"},
      {"inproc:", "{'max_message_bytes': 1e300}", "options.max_message_bytes"},
      {"inproc:", "{'require_serving': 1}", "options.require_serving"},
      {"inproc:", "{'transports': ['shm']}", "options.transports"},
      {"inproc:", "{'transports': []}", "options.transports"},
      {"127.0.0.1:1", "{'tls_ca_file': '/nowhere'}", "tls.ca_file"},
      {"127.0.0.1:1", "{'tls_cert_file': '/nowhere'}", "tls.cert_file"},
      {"unix:/nowhere", "{'tls': true}", "tls"},
      {"127.0.0.1:1", "{'token': 'a b'}", "token"},
      {"127.0.0.1:1", "{'token_file': '/nowhere'}", "token_file"},
      {"embedded", "{'threads': -1}", "options.threads"},
      {"embedded", "{'threads': 3000000000}", "options.threads"},
      {"embedded", "{'models': {'mine': {}}}", "options.models"},
  };
  rope_client* client = NULL;
  for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); ++i) {
    const char* options = refused[i].options == NULL ? NULL : quoted(refused[i].options);
    const int is_embedded = strcmp(refused[i].target, "embedded") == 0;
    CHECK_REFUSED(is_embedded ? rope_connect_embedded(options, &client)
                              : rope_connect(refused[i].target, options, &client),
                  refused[i].field);
  }
  CHECK_REFUSED(rope_connect(NULL, NULL, &client), "target");
  CHECK_REFUSED(rope_connect("inproc:", NULL, NULL), "client");
  rope_error* error =
      rope_connect("unix:/nowhere/rope.sock", quoted("{'timeout_ms': 200}"), &client);
  CHECK_TEXT(rope_error_code(error), "UNAVAILABLE");
  rope_error_free(error);
  CHECK(client == NULL);

  CHECK_OK(rope_connect_embedded(
      quoted("{'threads': 1, 'memory_bytes': 268435456, 'models': {'mine': '{\\'model_type\\': "
             "\\'llama\\', \\'rope_theta\\': 500.0, \\'head_dim\\': 8}'}}"),
      &client));
  CHECK_TEXT(rope_transport(client), "in_process");
  start();
  rope_prepared* prepared =
      prepare(client, "{'rotate': {'rope': {'model': 'mine'}, 'tensors': [" Q "]}}");
  CHECK_OK(rotate_at(prepared, values, 5));
  check_rotated(result, values, 5, 500);
  rope_prepared_free(prepared);
  rope_close(client);
}

static void test_null(void) {
  CHECK_TEXT(rope_error_code(NULL), "OK");
  CHECK_TEXT(rope_error_reason(NULL), "");
  CHECK_TEXT(rope_error_message(NULL), "");
  CHECK_TEXT(rope_error_field(NULL), "");
  CHECK_TEXT(rope_transport(NULL), "");
  CHECK_TEXT(rope_prepared_text(NULL), "");
  CHECK(rope_memory_data(NULL) == NULL);
  rope_error_free(NULL);
  rope_close(NULL);
  rope_prepared_free(NULL);
  rope_memory_free(NULL);
  rope_text_free(NULL);
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  CHECK(strlen(rope_version()) >= strlen("0.9.0"));
  rope_client* client = connect_to(argv[1], NULL);
  test_rotate(client);
  test_arrays(client);
  test_fields(client);
  test_operations(client);
  test_tables(client);
  test_pages(client);
  test_open_axis(client);
  test_positions(client);
  test_refused_arguments(client);
  test_refused_requests(client);
  test_calls(client);
  test_memory(argv[1]);
  test_null();
  printf("%s: %s\n", argv[1], rope_transport(client));
  rope_close(client);
  if (strcmp(argv[1], "embedded") == 0) test_options();
  return 0;
}
