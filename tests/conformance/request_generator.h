// Random legal requests. Choices with few alternatives are enumerated; everything else is random.
#ifndef ROPE_TESTS_CONFORMANCE_REQUEST_GENERATOR_H_
#define ROPE_TESTS_CONFORMANCE_REQUEST_GENERATOR_H_

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "rope/v1/rotate.pb.h"

namespace rope::testing {

// The form of the positions.
enum class Where {
  kStart,
  kStarts,
  kIds,
  kSections,  // three rows, as the next three
  kInterleaved,
  kErnie,
  kAxial,
  kContextParallel,
  kContextParallelStarts,
};

// The encoding of the positions, if they are an array.
enum class Width { kInt32, kInt64, kNumbers };

// The place of the head axis among the token axes.
enum class Heads { kNone, kInside, kOutside, kBetween };

enum class Act { kRotate, kInverse, kBackward, kReposition, kRepositionAcross };

enum class Window {
  kWhole,
  kLeading,
  kTrailing,
  kMiddle,
  kWiderHead,  // the tensor has more channels than the config's head_dim
};

struct Choices {
  v1::Pairing pairing = v1::PAIRING_HALF;
  v1::DType dtype = v1::DTYPE_FP32;
  std::string layout;  // of the first tensor
  bool cu_seqlens = false;
  Where where = Where::kStart;
  Width width = Width::kInt32;
  Act act = Act::kRotate;
  Window window = Window::kWhole;
};

// Every layout with the heads at that place: with or without T, L, B and S, in any order.
std::vector<std::string> LayoutsOf(bool packed, Heads heads);

// Enumerates every combination of the choices. Layouts with the heads at the same place take turns.
class EveryChoice {
 public:
  // Calls `visit(choices)` for each.
  template <typename Visit>
  void ForEach(const Visit& visit) {
    for (const bool packed : {false, true}) {
      for (const Heads heads : {Heads::kNone, Heads::kInside, Heads::kOutside, Heads::kBetween}) {
        ForEachPositions(packed, heads, visit);
      }
    }
  }
  // How many combinations of layout, positions and operation were visited, and how many exist.
  int64_t layouts_visited() const;
  int64_t layouts() const;

 private:
  using Turns = std::tuple<bool, Heads, Where, Act>;

  static std::vector<Width> WidthsOf(Where where, bool cu_seqlens);
  std::string NextLayout(bool packed, Heads heads, const Choices& choices);

  template <typename Visit>
  void ForEachPositions(bool packed, Heads heads, const Visit& visit) {
    for (int where = 0; where <= static_cast<int>(Where::kContextParallelStarts); ++where) {
      for (int cu_seqlens = 0; cu_seqlens <= (packed ? 1 : 0); ++cu_seqlens) {
        Choices choices;
        choices.where = static_cast<Where>(where);
        choices.cu_seqlens = cu_seqlens == 1;
        for (const Width width : WidthsOf(choices.where, choices.cu_seqlens)) {
          choices.width = width;
          ForEachRotation(packed, heads, choices, visit);
        }
      }
    }
  }

  template <typename Visit>
  void ForEachRotation(bool packed, Heads heads, Choices choices, const Visit& visit) {
    for (const v1::Pairing pairing : {v1::PAIRING_HALF, v1::PAIRING_INTERLEAVED}) {
      for (const v1::DType dtype : {v1::DTYPE_FP32, v1::DTYPE_FP16, v1::DTYPE_BF16}) {
        for (int act = 0; act <= static_cast<int>(Act::kRepositionAcross); ++act) {
          for (int window = 0; window <= static_cast<int>(Window::kWiderHead); ++window) {
            choices.pairing = pairing;
            choices.dtype = dtype;
            choices.act = static_cast<Act>(act);
            choices.window = static_cast<Window>(window);
            choices.layout = NextLayout(packed, heads, choices);
            visit(choices);
          }
        }
      }
    }
  }

  std::map<Turns, size_t> turns_;  // layouts visited
};

// Draws the shapes (0 and 1 tokens, 1 and 71 heads, heads of 2 to 512 channels), the embedding, its
// positions, more tensors, strides, head ranges and output layouts.
class RequestGenerator {
 public:
  explicit RequestGenerator(uint32_t seed) : random_(seed) {}

  v1::RotateRequest Make(const Choices& choices);

 private:
  struct Shape;   // lengths of the axes and of packed sequences
  struct Rotary;  // channels of the head, and the rotated channels

  int64_t Between(int64_t least, int64_t most);
  bool OneIn(int64_t count) { return Between(1, count) == 1; }
  template <typename T>
  T OneOf(const std::vector<T>& values) {
    return values[static_cast<size_t>(Between(0, static_cast<int64_t>(values.size()) - 1))];
  }
  std::string Shuffled(std::string letters);

  Shape DrawShape(const Choices& choices);
  Rotary DrawRotary(Window window);
  void DrawFrequencies(Where where, int64_t rotary_dim, v1::RopeConfig& config);
  void DrawSections(Where where, int64_t pairs, v1::RopeConfig& config);
  v1::RopeConfig DrawConfig(Where where, const Rotary& rotary);
  void SetIntegers(const std::vector<int64_t>& values, const std::vector<int64_t>& shape,
                   Width width, v1::Array& array);
  void DrawIds(const Choices& choices, const Shape& shape, int64_t most, v1::Array& array);
  v1::Positions DrawPositions(const Choices& choices, const Shape& shape);
  void DrawReposition(const Choices& choices, const Shape& shape, const Rotary& rotary,
                      v1::RotateRequest& request);
  void DrawHeads(int64_t heads, v1::Tensor& tensor);
  std::vector<int64_t> DrawStrides(const v1::Tensor& tensor);
  void DrawElements(int64_t count, v1::Array& array);
  // `own_window`: the tensor has its own D and rotary_offset.
  void DrawTensor(const std::string& layout, v1::DType dtype, Shape shape, const Rotary& rotary,
                  bool own_window, v1::Tensor& tensor);

  std::mt19937 random_;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_CONFORMANCE_REQUEST_GENERATOR_H_
