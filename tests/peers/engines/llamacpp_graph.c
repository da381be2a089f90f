// Prints the rotations of llama.cpp's graph of a GGUF file, as lines of JSON.
//
// Usage: llamacpp_graph FILE CONTEXT
// FILE: metadata, and the tensors of frequency factors if the model has them. llama.cpp makes its
// tensors of the metadata, without memory, and builds the graph of one token. Each different
// GGML_OP_ROPE of the graph then rotates every unit vector, by ggml on the CPU. CONTEXT: a number
// of tokens; 0: that of the file.
// llamacpp.sh compiles it, record_llamacpp.py runs it.

#include <ggml-cpu.h>
#include <ggml.h>
#include <gguf.h>
#include <llama.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// src/llama-ext.h declares it for C++.
struct ggml_cgraph* llama_graph_reserve(
    struct llama_context*, uint32_t tokens, uint32_t sequences,
    uint32_t outputs) __asm__("_Z19llama_graph_reserveP13llama_contextjjj");

enum { kAxes = 4, kTokens = 6, kFarToken = 5, kThreads = 1, kMostRotations = 64 };
enum { kOneToken = 0 };  // its position is 1 on every axis; token 1 + a has it on axis a alone
static const int32_t kFar = 1000;

// Where the elements of ggml_rope_ext's parameters are (ggml_rope_impl).
enum { kDims = 1, kMode = 2, kOriginal = 4, kFloats = 5, kSections = 11, kOffset = 15, kEnd = 16 };

struct Rotation {
  int32_t params[kEnd];
  int64_t channels;
  const struct ggml_tensor* factors;
};

static void fail(const char* what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}

static void only_errors(enum ggml_log_level level, const char* text, void* unused) {
  (void)unused;
  if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static bool is_multi(const struct Rotation* rotation) {
  return (rotation->params[kMode] & GGML_ROPE_TYPE_MROPE) != 0;
}

// The positions of the tokens: by axis, then by token.
static void set_positions(struct ggml_tensor* positions, int axes) {
  int32_t* values = positions->data;
  for (int axis = 0; axis < axes; ++axis) {
    for (int token = 0; token < kTokens; ++token) {
      const bool at_one = token == kOneToken || token == 1 + axis;
      values[axis * kTokens + token] = token == kFarToken ? kFar : at_one;
    }
  }
}

// A rotation of every unit vector, for every token. Head h of a token is unit vector h.
static struct ggml_tensor* rotate(struct ggml_context* context, const struct Rotation* rotation) {
  const int64_t n = rotation->channels;
  const int axes = is_multi(rotation) ? kAxes : 1;
  struct ggml_tensor* units = ggml_new_tensor_3d(context, GGML_TYPE_F32, n, n, kTokens);
  struct ggml_tensor* positions = ggml_new_tensor_1d(context, GGML_TYPE_I32, axes * kTokens);
  ggml_set_zero(units);
  for (int64_t i = 0; i < n * kTokens; ++i) ((float*)units->data)[i * n + i % n] = 1;
  set_positions(positions, axes);

  struct ggml_tensor* factors = NULL;
  if (rotation->factors != NULL) {
    factors = ggml_new_tensor_1d(context, GGML_TYPE_F32, ggml_nelements(rotation->factors));
    memcpy(factors->data, rotation->factors->data, ggml_nbytes(factors));
  }
  int sections[GGML_MROPE_SECTIONS] = {0};
  const int dims = rotation->params[kDims], mode = rotation->params[kMode];
  struct ggml_tensor* rotated =
      is_multi(rotation)
          ? ggml_rope_multi(context, units, positions, factors, dims, sections, mode, 0, 1, 1, 0, 1,
                            0, 0)
          : ggml_rope_ext(context, units, positions, factors, dims, mode, 0, 1, 1, 0, 1, 0, 0);
  memcpy(rotated->op_params, rotation->params, sizeof(rotation->params));

  struct ggml_cgraph* graph = ggml_new_graph(context);
  ggml_build_forward_expand(graph, rotated);
  if (ggml_graph_compute_with_ctx(context, graph, kThreads) != GGML_STATUS_SUCCESS) {
    fail("ggml cannot compute this rotation");
  }
  return rotated;
}

// Channel `to` of unit vector `from`, for a token.
static float at(const struct ggml_tensor* rotated, int token, int64_t from, int64_t to) {
  const int64_t n = rotated->ne[0];
  return ((const float*)rotated->data)[(token * n + from) * n + to];
}

// The other channel that a unit vector gets; or -1.
static int64_t partner_of(const struct ggml_tensor* rotated, int64_t from) {
  for (int64_t to = 0; to < rotated->ne[0]; ++to) {
    if (to != from && at(rotated, kOneToken, from, to) != 0) return to;
  }
  return -1;
}

// The axis whose position turns a channel.
static int axis_of(const struct ggml_tensor* rotated, int64_t from, int64_t to) {
  for (int axis = 0; axis < kAxes; ++axis) {
    if (at(rotated, 1 + axis, from, to) != 0) return axis;
  }
  return -1;
}

// [first channel, second channel, axis, cos, sin at position 1, cos, sin at kFar] of each pair.
static void print_pairs(const struct ggml_tensor* rotated) {
  const char* separator = "";
  for (int64_t from = 0; from < rotated->ne[0]; ++from) {
    const int64_t to = partner_of(rotated, from);
    if (to < from) continue;
    printf("%s[%d, %d, %d, %.9g, %.9g, %.9g, %.9g]", separator, (int)from, (int)to,
           axis_of(rotated, from, to), at(rotated, kOneToken, from, from),
           at(rotated, kOneToken, from, to), at(rotated, kFarToken, from, from),
           at(rotated, kFarToken, from, to));
    separator = ", ";
  }
}

static float float_of(const struct Rotation* rotation, int index) {
  float value;
  memcpy(&value, &rotation->params[index], sizeof(value));
  return value;
}

// The members of a rotation, without the nodes that have it.
static void print_rotation(const struct Rotation* rotation) {
  static const char* const kNames[] = {"freq_base",   "freq_scale", "ext_factor",
                                       "attn_factor", "beta_fast",  "beta_slow"};
  const int32_t* params = rotation->params;
  printf("\"channels\": %d, \"n_dims\": %d, \"mode\": %d, \"n_ctx_orig\": %d, \"n_offs\": %d, ",
         (int)rotation->channels, params[kDims], params[kMode], params[kOriginal], params[kOffset]);
  printf("\"sections\": [%d, %d, %d, %d], ", params[kSections], params[kSections + 1],
         params[kSections + 2], params[kSections + 3]);
  for (int i = 0; i < 6; ++i) printf("\"%s\": %.9g, ", kNames[i], float_of(rotation, kFloats + i));
  printf("\"factors\": \"%s\", ", rotation->factors == NULL ? "" : rotation->factors->name);

  const int64_t elements = rotation->channels * rotation->channels * kTokens;
  const struct ggml_init_params memory = {.mem_size = 3 * elements * sizeof(float) + (4 << 20)};
  struct ggml_context* context = ggml_init(memory);
  printf("\"pairs\": [");
  print_pairs(rotate(context, rotation));
  printf("]");
  ggml_free(context);
}

// llama.cpp makes every optional tensor where it has no file. The file decides.
static struct Rotation rotation_of(const struct ggml_tensor* node, struct ggml_context* of_file) {
  struct Rotation rotation = {.channels = node->ne[0]};
  memcpy(rotation.params, node->op_params, sizeof(rotation.params));
  if (node->src[2] != NULL) rotation.factors = ggml_get_tensor(of_file, node->src[2]->name);
  return rotation;
}

static bool same(const struct Rotation* a, const struct Rotation* b) {
  return memcmp(a->params, b->params, sizeof(a->params)) == 0 && a->channels == b->channels &&
         a->factors == b->factors;
}

static void print_rotations(struct ggml_cgraph* graph, struct ggml_context* of_file) {
  struct Rotation seen[kMostRotations];
  int count = 0;
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    const struct ggml_tensor* node = ggml_graph_node(graph, i);
    if (node->op != GGML_OP_ROPE) continue;
    const struct Rotation rotation = rotation_of(node, of_file);
    int index = 0;
    while (index < count && !same(&seen[index], &rotation)) ++index;
    if (index == kMostRotations) fail("more different rotations than expected");
    printf("{\"node\": \"%s\", \"rotation\": %d", node->name, index);
    if (index == count) {
      seen[count++] = rotation;
      printf(", ");
      print_rotation(&rotation);
    }
    printf("}\n");
  }
}

static void no_data(struct ggml_tensor* tensor, void* unused) {
  (void)tensor;
  (void)unused;
}

static struct llama_model* model_of(struct gguf_context* metadata) {
  struct llama_model_params params = llama_model_default_params();
  params.no_alloc = true;
  params.n_gpu_layers = 0;
  struct llama_model* model = llama_model_init_from_user(metadata, no_data, NULL, params);
  if (model == NULL) fail("llama.cpp makes no model of it");
  return model;
}

static struct llama_context* context_of(struct llama_model* model, uint32_t tokens) {
  struct llama_context_params params = llama_context_default_params();
  params.n_ctx = tokens;
  params.n_batch = params.n_ubatch = 32;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  struct llama_context* context = llama_init_from_model(model, params);
  if (context == NULL) fail("llama.cpp makes no context of it");
  return context;
}

static void print_graph(struct gguf_context* metadata, struct ggml_context* of_file,
                        uint32_t tokens) {
  struct llama_model* model = model_of(metadata);
  struct llama_context* context = context_of(model, tokens);
  printf("{\"context\": %u}\n", llama_n_ctx_seq(context));
  struct ggml_cgraph* graph = llama_graph_reserve(context, 1, 1, 1);
  if (graph == NULL) fail("llama.cpp makes no graph of it");
  print_rotations(graph, of_file);
  llama_free(context);
  llama_model_free(model);
}

int main(int argc, char** argv) {
  if (argc != 3) fail("usage: llamacpp_graph FILE CONTEXT");
  llama_log_set(only_errors, NULL);
  llama_backend_init();
  struct ggml_context* of_file = NULL;
  const struct gguf_init_params params = {.no_alloc = false, .ctx = &of_file};
  struct gguf_context* metadata = gguf_init_from_file(argv[1], params);
  if (metadata == NULL) fail("no GGUF file");

  print_graph(metadata, of_file, (uint32_t)strtoul(argv[2], NULL, 10));
  return 0;
}
