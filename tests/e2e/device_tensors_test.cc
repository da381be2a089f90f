// Tensors in memory of a GPU, as a program uses them in its own process: through the public client,
// over a driver without a device.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend/cuda/cuda_driver.h"
#include "rope/embedded.h"
#include "tests/support/fake_cuda_fixture.h"
#include "tests/support/matchers.h"
#include "tests/support/status_matchers.h"

namespace rope::testing {
namespace {

using client::Client;
using client::DType;
using client::Memory;
using client::Operation;
using client::RotateRequest;
using client::TensorView;
using kernels::Cuda;
using kernels::CudaError;

constexpr int64_t kRows = 512;  // of tables
constexpr int64_t kHeadDim = 64;

// Memory of the GPU, which tests read and write where it is.
class GpuMemory {
 public:
  explicit GpuMemory(size_t bytes) {
    EXPECT_EQ(Cuda().cuMemAlloc(&data_, bytes), CudaError::kSuccess);
  }
  template <typename T>
  explicit GpuMemory(const std::vector<T>& values) : GpuMemory(values.size() * sizeof(T)) {
    std::memcpy(data_, values.data(), values.size() * sizeof(T));
  }
  ~GpuMemory() { EXPECT_EQ(Cuda().cuMemFree(data_), CudaError::kSuccess); }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  void* data() const { return data_; }
  std::vector<uint8_t> bytes(size_t count) const {
    const auto* const first = static_cast<const uint8_t*>(data_);
    return {first, first + count};
  }

 private:
  void* data_ = nullptr;
};

struct Shape {
  const char* layout;
  std::vector<int64_t> lengths;
};

int64_t ElementsOf(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t length : shape) elements *= length;
  return elements;
}

// Bytes that are finite numbers of every type.
std::vector<uint8_t> Elements(const TensorView& tensor) {
  std::vector<uint8_t> bytes(
      static_cast<size_t>(ElementsOf(tensor.shape) * client::ElementBytes(tensor.dtype)));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(0x31 + i * 7 % 13);
  return bytes;
}

class DeviceTensorsTest : public FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    void* context = nullptr;  // of the program, as a framework has it
    EXPECT_EQ(Cuda().cuDevicePrimaryCtxRetain(&context, 0), CudaError::kSuccess);
    EXPECT_EQ(Cuda().cuCtxSetCurrent(context), CudaError::kSuccess);
    CUstream_st* stream = nullptr;
    EXPECT_EQ(Cuda().cuStreamCreate(&stream, 0), CudaError::kSuccess);
    stream_.reset(stream);
  }
  void TearDown() override {
    client_.reset();
    stream_.reset();
    FakeCudaTest::TearDown();
  }

  const Client& client() {
    if (client_ == nullptr) {
      client_ =
          std::make_unique<Client>(embedded::Connect({.device_table_bytes = 4 << 20}).value());
    }
    return *client_;
  }
  DeviceQueue Queue() const { return {.stream = stream_.get(), .positions_max = kRows}; }
  void Wait() const { EXPECT_EQ(Cuda().cuStreamSynchronize(stream_.get()), CudaError::kSuccess); }

  static RotateRequest Request(const Shape& shape, DType dtype = DType::kBFloat16) {
    RotateRequest request;
    request.rope.config_json =
        R"({"rope_theta": 10000, "head_dim": 64, "max_position_embeddings": 512})";
    request.rope.pairing = Pairing::kHalf;
    request.positions.start = 7;
    request.tensors = {{.layout = shape.layout, .dtype = dtype, .shape = shape.lengths}};
    return request;
  }

  // The result of the CPU. `ids`: where positions are given one by one.
  std::vector<uint8_t> OnCpu(RotateRequest request, const std::vector<int64_t>& ids = {}) {
    if (!ids.empty()) {
      request.positions.device_ids = nullptr;
      request.positions.start.reset();
      request.positions.position_ids = ids;
    }
    const std::vector<uint8_t> input = Elements(request.tensors[0]);
    std::vector<uint8_t> output(input.size());
    request.tensors[0].data = input.data();
    request.tensors[0].output = output.data();
    const auto reply = client().Rotate(request);
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    return output;
  }
  // The same of the GPU, whose positions `request` has.
  std::vector<uint8_t> OnGpu(RotateRequest request, bool in_place) {
    const std::vector<uint8_t> input = Elements(request.tensors[0]);
    const GpuMemory memory(input);
    const GpuMemory other(input.size());
    request.tensors[0].data = memory.data();
    request.tensors[0].memory = Memory::kCuda;
    request.tensors[0].output = in_place ? memory.data() : other.data();
    const auto reply = client().Enqueue(request, Queue());
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    if (reply.ok()) {
      EXPECT_EQ(reply->device, "cuda:0");
    }
    Wait();
    return (in_place ? memory : other).bytes(input.size());
  }

  kernels::CudaStream stream_;
  std::unique_ptr<Client> client_;
};

TEST_F(DeviceTensorsTest, ResultsAreThoseOfTheCpu) {
  for (const Shape& shape : {Shape{"SHD", {5, 4, kHeadDim}}, Shape{"BHSD", {2, 3, 4, kHeadDim}},
                             Shape{"BSHD", {3, 2, 2, kHeadDim}}, Shape{"THD", {1, 2, kHeadDim}},
                             Shape{"SBHD", {3, 2, 2, kHeadDim}}}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const Pairing pairing : {Pairing::kHalf, Pairing::kInterleaved}) {
        for (const bool in_place : {false, true}) {
          RotateRequest request = Request(shape, dtype);
          request.rope.pairing = pairing;
          EXPECT_EQ(OnGpu(request, in_place), OnCpu(request))
              << shape.layout << " " << Name(dtype) << " " << Name(pairing) << " " << in_place;
        }
      }
    }
  }
}

TEST_F(DeviceTensorsTest, OperationsAndPartsAreThoseOfTheCpu) {
  for (const Operation operation : {Operation::kInverse, Operation::kBackward}) {
    RotateRequest request = Request({"SHD", {5, 4, kHeadDim}});
    request.operation = operation;
    EXPECT_EQ(OnGpu(request, true), OnCpu(request));
  }
  RotateRequest partial = Request({"SHD", {5, 4, kHeadDim}});
  partial.rope.config_json = R"({"rope_theta": 10000, "head_dim": 64, "partial_rotary_factor": 0.5,
                                "max_position_embeddings": 512})";
  EXPECT_EQ(OnGpu(partial, true), OnCpu(partial));
  EXPECT_EQ(OnGpu(partial, false), OnCpu(partial));
  RotateRequest packed = Request({"SHD", {5, 6, kHeadDim}});
  packed.tensors[0].head_ranges = {{client::Role::kQ, 0, 2}, {client::Role::kK, 2, 4}, {{}, 4, 6}};
  EXPECT_EQ(OnGpu(packed, true), OnCpu(packed));
  EXPECT_EQ(OnGpu(packed, false), OnCpu(packed));
  RotateRequest starts = Request({"BSHD", {2, 3, 2, kHeadDim}});
  starts.positions.start.reset();
  starts.positions.starts = {40, 9};
  EXPECT_EQ(OnGpu(starts, true), OnCpu(starts));
  RotateRequest float8 = Request({"SHD", {5, 4, kHeadDim}}, DType::kFloat8E4M3);
  EXPECT_EQ(OnGpu(float8, true), OnCpu(float8));
}

TEST_F(DeviceTensorsTest, PositionsMayLieOnTheDevice) {
  const std::vector<int64_t> wide = {9, 0, 511, 3, 77, 250};
  const std::vector<int32_t> narrow(wide.begin(), wide.end());
  const GpuMemory wide_ids(wide);
  const GpuMemory narrow_ids(narrow);
  for (const Shape& shape : {Shape{"BSHD", {3, 2, 2, kHeadDim}}, Shape{"BHSD", {3, 2, 2, kHeadDim}},
                             Shape{"BHSD", {6, 2, 1, kHeadDim}}, Shape{"THD", {6, 2, kHeadDim}},
                             Shape{"BHSD", {2, 2, 6, kHeadDim}}}) {
    for (const int32_t bytes : {4, 8}) {
      RotateRequest request = Request(shape);
      request.positions.start.reset();
      request.positions.device_ids = bytes == 4 ? narrow_ids.data() : wide_ids.data();
      request.positions.device_id_bytes = bytes;
      request.positions.position_ids_shape = {6};
      const bool by_batch = shape.layout[0] == 'B' && shape.lengths[0] != 2;
      if (by_batch) request.positions.position_ids_shape = {shape.lengths[0], 6 / shape.lengths[0]};
      EXPECT_EQ(OnGpu(request, true), OnCpu(request, wide)) << shape.layout << bytes;
    }
  }
}

TEST_F(DeviceTensorsTest, UniformMoveNeedsNoTable) {
  for (const int64_t by : {-5, 300}) {
    RotateRequest request = Request({"LBSHD", {2, 2, 3, 2, kHeadDim}});
    request.positions.start.reset();
    request.operation = Operation::kReposition;
    request.reposition.emplace().by = {by};
    const int64_t before = fake_cuda::Counts().launches;
    const std::vector<uint8_t> moved = OnGpu(request, true);
    EXPECT_EQ(moved, OnCpu(request));
    if (by == 300) {
      EXPECT_EQ(fake_cuda::Counts().launches, before + 1) << "one for all layers";
    }
  }
  EXPECT_EQ(fake_cuda::Counts().device_bytes, 0);
}

// A prepared rotation of q and k, in place, with positions on the GPU.
class PreparedDeviceTest : public DeviceTensorsTest {
 protected:
  void SetUp() override {
    DeviceTensorsTest::SetUp();
    RotateRequest request = Request({"SHD", {4, 4, kHeadDim}});
    request.tensors.push_back(request.tensors[0]);
    request.tensors[1].shape = {4, 2, kHeadDim};
    request.positions = {};
    bytes_ = Elements(request.tensors[0]);
    prepared_ = client().Prepare(request).value();
    q_ = std::make_unique<GpuMemory>(bytes_);
    k_ = std::make_unique<GpuMemory>(bytes_);
    ids_ = std::make_unique<GpuMemory>(std::vector<int64_t>{1, 2, 3, 4});
  }
  void TearDown() override {
    q_.reset();
    k_.reset();
    ids_.reset();
    DeviceTensorsTest::TearDown();
  }

  RotateRequest Call() const {
    RotateRequest call{.prepared = prepared_};
    call.positions.device_ids = ids_->data();
    call.positions.position_ids_shape = {4};
    for (const auto* const memory : {&q_, &k_}) {
      call.tensors.push_back(
          {.data = (*memory)->data(), .memory = Memory::kCuda, .output = (*memory)->data()});
    }
    return call;
  }
  DeviceQueue Preparing() const {
    DeviceQueue queue = Queue();
    queue.prepares_only = true;
    return queue;
  }
  void SetIds(const std::vector<int64_t>& ids) const {
    std::memcpy(ids_->data(), ids.data(), ids.size() * sizeof(int64_t));
  }
  // The first `bytes` of q or k, turned by the CPU.
  std::vector<uint8_t> Turned(int64_t heads, const std::vector<int64_t>& ids) {
    return OnCpu(Request({"SHD", {4, heads, kHeadDim}}), ids);
  }

  std::vector<uint8_t> bytes_;
  std::optional<client::PreparedRotation> prepared_;
  std::unique_ptr<GpuMemory> q_, k_, ids_;
};

TEST_F(PreparedDeviceTest, CallIsOneLaunchAndNothingElse) {
  ASSERT_THAT(client().Enqueue(Call(), Preparing()), IsOk());
  Wait();
  EXPECT_EQ(q_->bytes(bytes_.size()), bytes_) << "nothing ran";
  const FakeCudaCounts before = fake_cuda::Counts();
  ASSERT_THAT(client().Enqueue(Call(), Queue()), IsOk());
  const FakeCudaCounts after = fake_cuda::Counts();
  EXPECT_EQ(after.launches, before.launches + 1);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.waits, before.waits);
  EXPECT_EQ(after.calls, before.calls + 6) << "context, addresses of q, k and ids, launch, context";
  EXPECT_EQ(q_->bytes(bytes_.size()), bytes_) << "it waits in the stream";
  Wait();
  EXPECT_EQ(q_->bytes(bytes_.size()), Turned(4, {1, 2, 3, 4}));
  EXPECT_EQ(k_->bytes(bytes_.size() / 2), Turned(2, {1, 2, 3, 4}));
}

TEST_F(PreparedDeviceTest, GraphReadsPositionsAtEachReplay) {
  ASSERT_THAT(client().Enqueue(Call(), Preparing()), IsOk());
  fake_cuda::BeginCapture(stream_.get());
  EXPECT_THAT(client().Enqueue(Call(), Queue()), IsOk());
  const fake_cuda::Graph graph = fake_cuda::EndCapture(stream_.get());
  EXPECT_EQ(graph.size(), 1U);
  for (const std::vector<int64_t>& ids : {std::vector<int64_t>{5, 6, 7, 8}, {0, 511, 9, 2}}) {
    std::memcpy(q_->data(), bytes_.data(), bytes_.size());
    SetIds(ids);
    fake_cuda::Replay(graph, stream_.get());
    Wait();
    EXPECT_EQ(q_->bytes(bytes_.size()), Turned(4, ids));
  }
}

TEST_F(PreparedDeviceTest, CaptureComesAfterTheFirstCall) {
  fake_cuda::BeginCapture(stream_.get());
  const auto kernels = client().Enqueue(Call(), Queue());
  fake_cuda::EndCapture(stream_.get());
  EXPECT_EQ(kernels.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(kernels.status().message(),
              HasSubstr("stream: got a capture before the device has the kernels"));
  RotateRequest move = Request({"SHD", {4, 4, kHeadDim}});
  move.positions = {};
  move.operation = Operation::kReposition;
  move.reposition.emplace().by = {1};
  OnGpu(move, true);  // loads the kernels
  fake_cuda::BeginCapture(stream_.get());
  const auto table = client().Enqueue(Call(), Queue());
  EXPECT_TRUE(fake_cuda::EndCapture(stream_.get()).empty());
  EXPECT_EQ(table.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(table.status().message(), HasSubstr("got a capture before the device has the table"));
}

TEST_F(PreparedDeviceTest, PositionsOutsideTakeTheLastRowAndCount) {
  const GpuMemory count(std::vector<uint32_t>{0});
  SetIds({3, 512, -1, 9});
  DeviceQueue queue = Queue();
  queue.positions_outside = static_cast<uint32_t*>(count.data());
  ASSERT_THAT(client().Enqueue(Call(), queue), IsOk());
  Wait();
  EXPECT_EQ(*static_cast<const uint32_t*>(count.data()), 2U);
  EXPECT_EQ(q_->bytes(bytes_.size()), Turned(4, {3, 511, 511, 9}));
}

TEST_F(PreparedDeviceTest, EachCallOfTheDriverMayFail) {
  for (const char* function :
       {"cuInit", "cuDeviceGet", "cuDeviceGetName", "cuDeviceTotalMem", "cuDeviceGetAttribute",
        "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent", "cuModuleLoadData", "cuModuleGetFunction",
        "cuMemAlloc", "cuMemAllocHost", "cuStreamCreate", "cuMemcpyAsync", "cuLaunchKernel",
        "cuStreamSynchronize", "cuPointerGetAttributes"}) {
    fake_cuda::Fail(function, 1, kInvalidValue);
    const auto reply = client().Enqueue(Call(), Queue());
    EXPECT_FALSE(reply.ok()) << function;
    EXPECT_THAT(reply.status().message(), HasSubstr(function));
    client_.reset();  // a check that failed refuses the GPU
  }
  for (const char* function : {"cuCtxPushCurrent", "cuPointerGetAttributes", "cuLaunchKernel"}) {
    ASSERT_THAT(client().Enqueue(Call(), Queue()), IsOk()) << function;
    fake_cuda::Fail(function, 1, kInvalidValue);
    EXPECT_THAT(client().Enqueue(Call(), Queue()).status().message(), HasSubstr(function));
  }
  EXPECT_THAT(client().Enqueue(Call(), Queue()), IsOk()) << "it failed once";
}

TEST_F(PreparedDeviceTest, WrongResultRefusesTheDevice) {
  fake_cuda::BreakKernel("RectangleTurnFloat16Interleaved");
  for (const char* when : {"first", "later"}) {
    const auto reply = client().Enqueue(Call(), Queue());
    EXPECT_EQ(reply.status().code(), StatusCode::kInternal) << when;
    EXPECT_THAT(reply.status().message(), HasSubstr("of RectangleTurnFloat16Interleaved"));
    fake_cuda::BreakKernel("");
  }
}

TEST_F(PreparedDeviceTest, TablesHaveABudget) {
  DeviceQueue queue = Queue();
  queue.positions_max = 16384;  // of 256 bytes
  EXPECT_THAT(client().Enqueue(Call(), queue), IsOk());
  queue.positions_max = 16385;
  const auto reply = client().Enqueue(Call(), queue);
  EXPECT_EQ(reply.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(reply.status().message(), HasSubstr("at most 4194304 together (device_table_bytes)"));
}

// What a request asks for, and the words that refuse it.
constexpr char kDynamic[] = R"({"rope_theta": 10000, "head_dim": 64,
  "max_position_embeddings": 512, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})";

struct Refusal {
  StatusCode code;
  const char* words;
  void (*change)(RotateRequest& request, DeviceQueue& queue, void* host);
};

TEST_F(DeviceTensorsTest, RefusalsSayWhat) {
  const Refusal refusals[] = {
      {StatusCode::kInvalidArgument, "tensors[0].memory: got host memory, want memory of the GPU",
       [](auto& request, auto&, void* host) {
         request.tensors[0] = {.layout = "SHD", .dtype = DType::kBFloat16, .shape = {2, 2, 64}};
         request.tensors[0].data = request.tensors[0].output = host;
       }},
      {StatusCode::kInvalidArgument, "tensors[0]: got an address in host memory, want memory of c",
       [](auto& request, auto&, void* host) {
         request.tensors[0].data = request.tensors[0].output = host;
       }},
      {StatusCode::kInvalidArgument, "tensors[0].output: got null, want memory of the GPU",
       [](auto& request, auto&, void*) { request.tensors[0].output = nullptr; }},
      {StatusCode::kInvalidArgument, "tensors[0]: got memory of cuda:0, want memory of cuda:1",
       [](auto&, auto& queue, void*) { queue.device = 1; }},
      {StatusCode::kInvalidArgument, "device: got -1",
       [](auto&, auto& queue, void*) { queue.device = -1; }},
      {StatusCode::kUnimplemented, "tensors[0].array.strides: got 2 for D with tensors on a device",
       [](auto& request, auto&, void*) {
         request.tensors[0].shape = {2, 1, 64};
         request.tensors[0].strides = {128, 128, 2};
         request.tensors[0].output = static_cast<char*>(request.tensors[0].output) + 4096;
       }},
      {StatusCode::kUnimplemented, "rows: got rows with tensors on a device, want an embedding",
       [](auto& request, auto&, void*) {
         request.rope = {.pairing = Pairing::kHalf};
         request.positions = {};
         request.rows.emplace().angles = {.shape = {2, 32}, .data = request.tensors[0].data};
       }},
      {StatusCode::kUnimplemented, "tensors[0].norm.weight: got weights with tensors on a device",
       [](auto& request, auto&, void*) {
         static const std::vector<float> weights(64, 2.0F);
         request.tensors[0].norm.emplace() = {.eps = 1,
                                              .weight = {.shape = {64}, .data = weights.data()}};
       }},
      {StatusCode::kUnimplemented, "positions.position_ids: got ids in host memory with tensors",
       [](auto& request, auto&, void*) {
         request.positions = {.position_ids = {1, 2}};
       }},
      {StatusCode::kInvalidArgument, "positions.position_ids: got an address in host memory",
       [](auto& request, auto&, void* host) {
         request.positions = {.position_ids_shape = {2}, .device_ids = host};
       }},
      {StatusCode::kUnimplemented, "positions.cu_seqlens: got it with tensors on a device",
       [](auto& request, auto&, void*) {
         request.tensors[0].layout = "THD";
         request.positions.cu_seqlens = {0, 1, 2};
       }},
      {StatusCode::kOutOfRange, "positions: got 512, want below the 512 rows of the table",
       [](auto& request, auto&, void*) { request.positions.start = 511; }},
      {StatusCode::kInvalidArgument, "positions_max: got 0, want the rows of the table",
       [](auto& request, auto& queue, void*) {
         request.rope.config_json = R"({"rope_theta": 10000, "head_dim": 64})";
         queue.positions_max = 0;
       }},
      {StatusCode::kUnimplemented, "reposition.by: got shape [2] with tensors on a device",
       [](auto& request, auto&, void*) {
         request.positions = {};
         request.operation = Operation::kReposition;
         request.reposition.emplace().by = {1, 2};
       }},
      {StatusCode::kUnimplemented, "reposition: got positions before and after with tensors on a",
       [](auto& request, auto&, void*) {
         request.operation = Operation::kReposition;
         request.reposition.emplace().from.start = 3;
       }},
      {StatusCode::kUnimplemented, "reposition.from_rope: got it with tensors on a device",
       [](auto& request, auto&, void*) {
         request.operation = Operation::kReposition;
         request.reposition.emplace().from.start = 3;
         request.reposition->from_rope = request.rope;
       }},
      {StatusCode::kInvalidArgument, "reposition.by: got it with frequencies that follow the len",
       [](auto& request, auto&, void*) {
         request.rope.config_json = kDynamic;
         request.positions = {};
         request.operation = Operation::kReposition;
         request.reposition.emplace().by = {1};
       }},
      {StatusCode::kUnimplemented, "positions.seq_lens: got nothing for frequencies that follow",
       [](auto& request, auto&, void*) {
         request.rope.config_json = kDynamic;
         request.tensors[0].layout = "BHD";
         request.tensors[0].shape = {2, 2, 64};
         request.positions = {.starts = {1, 2}};
       }},
      {StatusCode::kUnimplemented, "rope: got frequencies of this length alone with tensors on a",
       [](auto& request, auto&, void*) {
         request.rope.config_json = kDynamic;
         request.positions.seq_lens = {4096};
       }},
      {StatusCode::kUnimplemented, "rope.first_layer: got it with tensors on a device",
       [](auto& request, auto&, void*) {
         request.rope.config_json = R"({"model_type": "gemma3_text", "head_dim": 64,
           "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]})";
         request.rope.first_layer = 0;
         request.tensors[0].layout = "LHD";
       }},
      {StatusCode::kUnimplemented, "operation: got OPERATION_ADD_SINUSOIDAL with tensors on a",
       [](auto& request, auto&, void*) { request.operation = Operation::kAddSinusoidal; }},
      {StatusCode::kUnimplemented, "output.channel_order: got another order with tensors on a",
       [](auto& request, auto&, void*) { request.channel_order = Pairing::kInterleaved; }},
      {StatusCode::kUnimplemented, "tensors[0]: got sizes, strides, addresses or a conversion",
       [](auto& request, auto&, void*) {
         request.output_dtype = DType::kFloat16;
         request.tensors[0].output = static_cast<char*>(request.tensors[0].output) + 4096;
       }},
      {StatusCode::kInvalidArgument,
       "tensors: got an output that overlaps another tensor on the GPU",
       [](auto& request, auto&, void*) {
         request.tensors[0].output = static_cast<char*>(request.tensors[0].output) + 16;
       }},
  };
  const GpuMemory memory(std::vector<uint8_t>(8192));
  std::vector<uint8_t> host(8192);
  for (const Refusal& refusal : refusals) {
    RotateRequest request = Request({"SHD", {2, 2, kHeadDim}});
    request.tensors[0].data = request.tensors[0].output = memory.data();
    request.tensors[0].memory = Memory::kCuda;
    DeviceQueue queue = Queue();
    refusal.change(request, queue, host.data());
    const auto reply = client().Enqueue(request, queue);
    EXPECT_EQ(reply.status().code(), refusal.code) << reply.status().ToString();
    EXPECT_THAT(reply.status().message(), HasSubstr(refusal.words));
  }
  RotateRequest request = Request({"SHD", {2, 2, kHeadDim}});
  request.tensors[0].data = request.tensors[0].output = memory.data();
  request.tensors[0].memory = Memory::kCuda;
  EXPECT_THAT(client().Rotate(request).status().message(),
              HasSubstr("tensors[0].memory: got memory of a GPU, want host memory, or Client::E"));
  EXPECT_THAT(client().RotateFuture(request).get().status().message(),
              HasSubstr("tensors[0].memory: got memory of a GPU"));
}

TEST_F(DeviceTensorsTest, WithoutADriverThatStartsCallsSayWhy) {
  const GpuMemory memory(std::vector<uint8_t>(8192));
  RotateRequest request = Request({"SHD", {2, 2, kHeadDim}});
  request.tensors[0].data = request.tensors[0].output = memory.data();
  request.tensors[0].memory = Memory::kCuda;
  for (const auto& [error, words] :
       {std::pair(CudaError::kNoDevice, "the NVIDIA driver sees no GPU"),
        std::pair(CudaError::kNotInitialized, "CUDA was started before this process was forked")}) {
    fake_cuda::Fail("cuInit", 1, error);
    const auto reply = client().Enqueue(request, Queue());
    EXPECT_EQ(reply.status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(reply.status().message(), HasSubstr(words));
  }
  EXPECT_THAT(client().Enqueue(request, Queue()), IsOk());
}

}  // namespace
}  // namespace rope::testing
