/* FC of the domain lite, for onnxruntime: what its C header declares, as far as this needs it, is written out here. */
#include <stddef.h>
#include <stdint.h>

typedef struct {
  const void* const* (*get_api)(uint32_t version);
  const char* (*version)(void);
} ApiBase;

enum { CREATE_DOMAIN = 26, ADD_OP = 27, ADD_DOMAIN = 28, DATA = 51, RANK = 61, DIMS = 62, SHAPE = 65, INT = 86, INPUT = 90, OUTPUT = 91, RELEASE_SHAPE = 99 };
#define CALL(api, i, ...) ((void* (*)())(api)[i])(__VA_ARGS__)

typedef struct Op Op;
struct Op {
  uint32_t version;
  void* (*create)(const Op*, const void* const* api, const void* info);
  const char* (*name)(const Op*);
  const char* (*provider)(const Op*);
  int (*input_type)(const Op*, size_t);
  size_t (*inputs)(const Op*);
  int (*output_type)(const Op*, size_t);
  size_t (*outputs)(const Op*);
  void (*compute)(void* kernel, void* context);
  void (*destroy)(void* kernel);
  int (*input_kind)(const Op*, size_t);
  int (*output_kind)(const Op*, size_t);
};

static const void* const* api;
static int64_t columns;  /* in_num_col_dims, of the kernel made last: all of a model are alike */

static void* create(const Op* op, const void* const* given, const void* info) {
  api = given;
  CALL(api, INT, info, "in_num_col_dims", &columns);
  return (void*)op;
}
static const char* name(const Op* op) { return "FC"; }
static const char* provider(const Op* op) { return NULL; }
static int floats(const Op* op, size_t i) { return 1; }
static size_t three(const Op* op) { return 3; }
static size_t one(const Op* op) { return 1; }
static int required(const Op* op, size_t i) { return 0; }
static void destroy(void* kernel) {}

static size_t dims_of(const void* value, int64_t* dims) {
  void* shape;
  size_t rank = 0;
  CALL(api, SHAPE, value, &shape);
  CALL(api, RANK, shape, &rank);
  CALL(api, DIMS, shape, dims, rank);
  CALL(api, RELEASE_SHAPE, shape);
  return rank;
}

static void compute(void* kernel, void* context) {
  const void* in[3];
  const float* data[3];
  int64_t dims[8], of_w[8], rows = 1, depth, width;
  for (size_t i = 0; i < 3; ++i) {
    CALL(api, INPUT, context, i, &in[i]);
    CALL(api, DATA, in[i], &data[i]);
  }
  dims_of(in[0], dims);
  dims_of(in[1], of_w);
  depth = of_w[0], width = of_w[1];
  for (int64_t i = 0; i < columns; ++i) rows *= dims[i];
  dims[columns] = width;
  void* out;
  float* y;
  CALL(api, OUTPUT, context, (size_t)0, dims, (size_t)columns + 1, &out);
  CALL(api, DATA, out, &y);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < width; ++c) {
      float sum = data[2][c];
      for (int64_t k = 0; k < depth; ++k) sum += data[0][r * depth + k] * data[1][k * width + c];
      y[r * width + c] = sum;
    }
}

static const Op fc = {1, create, name, provider, floats, three, floats, one, compute, destroy, required, required};

void* RegisterCustomOps(void* options, const ApiBase* base) {
  void* domain;
  void* status;
  api = base->get_api(1);
  if ((status = CALL(api, CREATE_DOMAIN, "lite", &domain))) return status;
  if ((status = CALL(api, ADD_OP, domain, &fc))) return status;
  return CALL(api, ADD_DOMAIN, options, domain);
}
