/* DLPack in and out, as a program does it that has tensors of another library. */
#include "rope/dlpack.h"

#include <stddef.h>

#include "check.h"

/* The published layout. */
_Static_assert(sizeof(DLDataType) == 4 && sizeof(DLDevice) == 8 && sizeof(DLTensor) == 48, "");
_Static_assert(offsetof(DLTensor, dtype) == 20 && offsetof(DLTensor, byte_offset) == 40, "");
_Static_assert(offsetof(DLManagedTensor, deleter) == 56, "");
_Static_assert(offsetof(DLManagedTensorVersioned, flags) == 24, "");
_Static_assert(offsetof(DLManagedTensorVersioned, dl_tensor) == 32, "");

enum { TOKENS = 2, HEADS = 2, DIM = 4, COUNT = TOKENS * HEADS * DIM };
static const char kConfig[] =
    "{\"model_type\": \"llama\", \"rope_theta\": 10000.0, \"head_dim\": 4}";

static rope_client* client;
static int64_t shape[] = {TOKENS, HEADS, DIM};
static _Alignas(16) float values[COUNT + 4];
static float result[COUNT];
static rope_spec rope;
static rope_positions positions;

static DLTensor dl_tensor(void* data) {
  DLTensor tensor;
  memset(&tensor, 0, sizeof(tensor));
  tensor.data = data;
  tensor.device.device_type = kDLCPU;
  tensor.ndim = 3;
  tensor.dtype.code = kDLFloat;
  tensor.dtype.bits = 32;
  tensor.dtype.lanes = 1;
  tensor.shape = shape;
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

static rope_tensor new_tensor(void) {
  rope_tensor tensor = ROPE_TENSOR_INIT;
  tensor.layout = "SHD";
  return tensor;
}

/* Packed, with a byte offset, with strides, and with the strides of packed elements. */
static void test_in(void) {
  DLTensor source = dl_tensor(values), destination = dl_tensor(result);
  rope_tensor tensor = new_tensor();
  CHECK_OK(rope_tensor_from_dlpack(&source, &tensor));
  CHECK_OK(rope_output_from_dlpack(&destination, 0, &tensor));
  CHECK(tensor.data == values && tensor.rank == 3 && tensor.shape == shape && !tensor.strides);
  CHECK(tensor.dtype == ROPE_DTYPE_FP32 && tensor.output == result);
  CHECK_TEXT(tensor.layout, "SHD");
  const rope_request request = request_of(&tensor);
  CHECK_OK(rope_rotate(client, &request, NULL, NULL));
  CHECK_NEAR(result[0], values[0] * cos(3) - values[2] * sin(3), 1e-5);

  source.byte_offset = 16;
  CHECK_OK(rope_tensor_from_dlpack(&source, &tensor));
  CHECK_OK(rope_rotate(client, &request, NULL, NULL));
  CHECK_NEAR(result[0], values[4] * cos(3) - values[6] * sin(3), 1e-5);
  source.byte_offset = 0;

  /* Heads outermost in memory. */
  int64_t strides[] = {DIM, TOKENS * DIM, 1};
  source.strides = strides;
  CHECK_OK(rope_tensor_from_dlpack(&source, &tensor));
  CHECK(tensor.strides == strides);
  CHECK_OK(rope_rotate(client, &request, NULL, NULL));
  CHECK_NEAR(result[DIM], values[8] * cos(3) - values[10] * sin(3), 1e-5);
  CHECK_NEAR(result[2 * DIM], values[4] * cos(4) - values[6] * sin(4), 1e-5);

  int64_t packed[] = {HEADS * DIM, DIM, 1};
  source.strides = packed;
  CHECK_OK(rope_tensor_from_dlpack(&source, &tensor));
  CHECK(tensor.strides == NULL);
  int64_t one_token[] = {1, HEADS, DIM}, odd[] = {-7, DIM, 1}; /* of one element: says nothing */
  source.shape = one_token;
  source.strides = odd;
  CHECK_OK(rope_tensor_from_dlpack(&source, &tensor));
  CHECK(tensor.strides == NULL);
}

static void test_types(void) {
  const struct {
    uint8_t code, bits;
    int32_t dtype;
  } known[] = {{kDLFloat, 32, ROPE_DTYPE_FP32},
               {kDLFloat, 16, ROPE_DTYPE_FP16},
               {kDLFloat, 64, ROPE_DTYPE_FP64},
               {kDLBfloat, 16, ROPE_DTYPE_BF16},
               {kDLFloat8_e4m3fn, 8, ROPE_DTYPE_FP8_E4M3},
               {kDLFloat8_e5m2, 8, ROPE_DTYPE_FP8_E5M2}};
  int accepted = 0;
  for (int code = 0; code < 256; ++code) {
    for (int bits = 0; bits < 256; ++bits) {
      DLTensor source = dl_tensor(values);
      source.dtype.code = (uint8_t)code;
      source.dtype.bits = (uint8_t)bits;
      rope_tensor tensor = new_tensor();
      rope_error* error = rope_tensor_from_dlpack(&source, &tensor);
      accepted += error == NULL;
      if (error != NULL) CHECK_TEXT(rope_error_field(error), "dlpack.dtype");
      for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); ++i) {
        if (known[i].code == code && known[i].bits == bits) CHECK(tensor.dtype == known[i].dtype);
      }
      rope_error_free(error);
    }
  }
  CHECK(accepted == 6);
}

static void test_refusals(void) {
  rope_tensor tensor = new_tensor();
  CHECK_REFUSED(rope_tensor_from_dlpack(NULL, &tensor), "source");
  DLTensor source = dl_tensor(values);
  CHECK_REFUSED(rope_tensor_from_dlpack(&source, NULL), "tensor");

  source.device.device_type = kDLCUDA;
  rope_error* error = rope_tensor_from_dlpack(&source, &tensor);
  CHECK_TEXT(rope_error_field(error), "dlpack.device");
  CHECK(strstr(rope_error_message(error), "CUDA device 0") && rope_error_code(error) == 3);
  rope_error_free(error);
  source.device.device_type = kDLROCM;
  CHECK_REFUSED(rope_tensor_from_dlpack(&source, &tensor), "dlpack.device");

  source = dl_tensor(values);
  source.dtype.lanes = 4;
  CHECK_REFUSED(rope_tensor_from_dlpack(&source, &tensor), "dlpack.dtype.lanes");
  const int32_t ranks[] = {-1, 0, 9};
  for (int i = 0; i < 3; ++i) {
    source = dl_tensor(values);
    source.ndim = ranks[i];
    CHECK_REFUSED(rope_tensor_from_dlpack(&source, &tensor), "dlpack.ndim");
  }
  source = dl_tensor(values);
  source.shape = NULL;
  CHECK_REFUSED(rope_tensor_from_dlpack(&source, &tensor), "dlpack.shape");
  int64_t negative[] = {TOKENS, -1, DIM};
  source.shape = negative;
  CHECK_REFUSED(rope_tensor_from_dlpack(&source, &tensor), "dlpack.shape[1]");
  source = dl_tensor(values);
  int64_t backwards[] = {HEADS * DIM, DIM, -1};
  source.strides = backwards;
  CHECK_REFUSED(rope_tensor_from_dlpack(&source, &tensor), "dlpack.strides[2]");
  source = dl_tensor(NULL);
  CHECK_REFUSED(rope_tensor_from_dlpack(&source, &tensor), "dlpack.data");
  source = dl_tensor(values);
  source.byte_offset = 2;
  CHECK_REFUSED(rope_tensor_from_dlpack(&source, &tensor), "dlpack.data");
  CHECK(tensor.data == NULL && tensor.rank == 0); /* nothing was set */
}

static void test_output_refusals(void) {
  DLTensor source = dl_tensor(values), destination = dl_tensor(result);
  rope_tensor tensor = new_tensor();
  CHECK_OK(rope_tensor_from_dlpack(&source, &tensor));
  CHECK_REFUSED(rope_output_from_dlpack(&destination, ROPE_DTYPE_BF16, &tensor), "dlpack.dtype");
  int64_t other[] = {TOKENS, HEADS + 1, DIM};
  destination.shape = other;
  CHECK_REFUSED(rope_output_from_dlpack(&destination, 0, &tensor), "dlpack.shape[1]");
  int64_t swapped[] = {HEADS, TOKENS + 1, DIM};
  destination.shape = swapped;
  tensor.output_layout = "HSD";
  CHECK_REFUSED(rope_output_from_dlpack(&destination, 0, &tensor), "dlpack.shape[1]");
  destination = dl_tensor(result);
  destination.ndim = 2;
  CHECK_REFUSED(rope_output_from_dlpack(&destination, 0, &tensor), "dlpack.ndim");
  CHECK(tensor.output == NULL);
}

static void test_versioned(void) {
  DLManagedTensorVersioned managed;
  memset(&managed, 0, sizeof(managed));
  managed.version.major = DLPACK_MAJOR_VERSION;
  managed.dl_tensor = dl_tensor(values);
  managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  rope_tensor tensor = new_tensor();
  CHECK_OK(rope_tensor_from_dlpack_versioned(&managed, &tensor)); /* input may be read-only */
  CHECK(tensor.data == values);
  CHECK_REFUSED(rope_output_from_dlpack_versioned(&managed, 0, &tensor), "dlpack.flags");
  managed.flags = DLPACK_FLAG_BITMASK_IS_COPIED;
  CHECK_OK(rope_output_from_dlpack_versioned(&managed, 0, &tensor)); /* in place */
  CHECK(tensor.output == values);
  managed.version.major = 2;
  CHECK_REFUSED(rope_tensor_from_dlpack_versioned(&managed, &tensor), "dlpack.version.major");
  CHECK_REFUSED(rope_output_from_dlpack_versioned(&managed, 0, &tensor), "dlpack.version.major");
  CHECK_REFUSED(rope_tensor_from_dlpack_versioned(NULL, &tensor), "source");
}

static void check_given(const DLTensor* tensor, uint8_t code, uint8_t bits) {
  CHECK(tensor->device.device_type == kDLCPU && tensor->byte_offset == 0 && tensor->ndim == 3);
  CHECK(tensor->dtype.code == code && tensor->dtype.bits == bits && tensor->dtype.lanes == 1);
  CHECK(tensor->shape[0] == TOKENS && tensor->shape[1] == HEADS && tensor->shape[2] == DIM);
  CHECK(tensor->strides[0] == HEADS * DIM && tensor->strides[1] == DIM && tensor->strides[2] == 1);
}

/* The managed tensor outlives reply and client. */
static void test_out(void) {
  rope_client* own = connect_to("in_process", NULL);
  DLTensor source = dl_tensor(values);
  rope_tensor tensor = new_tensor();
  CHECK_OK(rope_tensor_from_dlpack(&source, &tensor));
  rope_request request = request_of(&tensor);
  rope_reply* reply = NULL;
  CHECK_OK(rope_rotate(own, &request, NULL, &reply));
  DLManagedTensor *managed = NULL, *again = NULL;
  CHECK_REFUSED(rope_reply_to_dlpack(reply, 1, &managed), "index");
  CHECK_OK(rope_reply_to_dlpack(reply, 0, &managed));
  rope_error* error = rope_reply_to_dlpack(reply, 0, &again);
  CHECK(rope_error_code(error) == ROPE_FAILED_PRECONDITION && again == NULL);
  CHECK_TEXT(rope_error_field(error), "tensors[0]");
  rope_error_free(error);
  rope_result gone = ROPE_RESULT_INIT;
  error = rope_reply_tensor(reply, 0, &gone); /* whose memory may be freed any time */
  CHECK(rope_error_code(error) == ROPE_FAILED_PRECONDITION && gone.data == NULL);
  rope_error_free(error);
  rope_reply_free(reply);
  rope_close(own);
  check_given(&managed->dl_tensor, kDLFloat, 32);
  const float* given = managed->dl_tensor.data;
  CHECK_NEAR(given[0], values[0] * cos(3) - values[2] * sin(3), 1e-5);
  managed->deleter(managed);

  request.output_dtype = ROPE_DTYPE_FP8_E4M3;
  CHECK_OK(rope_rotate(client, &request, NULL, &reply));
  DLManagedTensorVersioned* versioned = NULL;
  CHECK_OK(rope_reply_to_dlpack_versioned(reply, 0, &versioned));
  rope_reply_free(reply);
  check_given(&versioned->dl_tensor, kDLFloat8_e4m3fn, 8);
  CHECK(versioned->version.major == 1 && versioned->flags == 0);
  versioned->deleter(versioned);

  request.output_dtype = 0;
  tensor.output = result;
  CHECK_OK(rope_rotate(client, &request, NULL, &reply));
  error = rope_reply_to_dlpack(reply, 0, &managed); /* the caller's memory */
  CHECK(rope_error_reason(error) == ROPE_REASON_WRONG_STATE);
  rope_error_free(error);
  rope_reply_free(reply);
}

/* The heads of the result lie one after another, each with its tokens. */
static void test_output_strides(void) {
  DLTensor source = dl_tensor(values), destination = dl_tensor(result);
  int64_t strides[] = {DIM, TOKENS * DIM, 1};
  destination.strides = strides;
  rope_tensor tensor = new_tensor();
  CHECK_OK(rope_tensor_from_dlpack(&source, &tensor));
  CHECK_OK(rope_output_from_dlpack(&destination, 0, &tensor));
  CHECK(tensor.output_strides == strides);
  rope_request request = request_of(&tensor);
  CHECK_OK(rope_rotate(client, &request, NULL, NULL));
  static float packed[COUNT];
  tensor.output = packed;
  tensor.output_strides = NULL;
  CHECK_OK(rope_rotate(client, &request, NULL, NULL));
  for (int t = 0; t < TOKENS; ++t) {
    for (int h = 0; h < HEADS; ++h) {
      CHECK(memcmp(result + (h * TOKENS + t) * DIM, packed + (t * HEADS + h) * DIM,
                   DIM * sizeof(float)) == 0);
    }
  }
}

/* No tokens: no memory in, none out. */
static void test_empty(void) {
  int64_t none[] = {0, HEADS, DIM};
  DLTensor source = dl_tensor(NULL);
  source.shape = none;
  rope_tensor tensor = new_tensor();
  CHECK_OK(rope_tensor_from_dlpack(&source, &tensor));
  CHECK_OK(rope_output_from_dlpack(&source, 0, &tensor));
  const rope_request request = request_of(&tensor);
  CHECK_OK(rope_rotate(client, &request, NULL, NULL));
  rope_reply* reply = NULL;
  CHECK_OK(rope_rotate(client, &request, NULL, &reply));
  DLManagedTensor* managed = NULL;
  CHECK_OK(rope_reply_to_dlpack(reply, 0, &managed));
  CHECK(managed->dl_tensor.data == NULL && managed->dl_tensor.shape[0] == 0);
  managed->deleter(managed);
  rope_reply_free(reply);
}

int main(void) {
  for (int i = 0; i < COUNT + 4; ++i) values[i] = (float)(i % 7) - 3;
  rope = (rope_spec)ROPE_SPEC_INIT;
  rope.config_json = kConfig;
  positions = (rope_positions)ROPE_POSITIONS_INIT;
  positions.start = 3;
  client = connect_to("in_process", NULL);
  test_in();
  test_types();
  test_refusals();
  test_output_refusals();
  test_versioned();
  test_out();
  test_output_strides();
  test_empty();
  rope_close(client);
  return 0;
}
