// Dot products of all pairs of a row's vectors, DLRM's interaction, without the products that it throws away.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

namespace {

using at::Tensor;

constexpr int64_t kRowsPerTask = 32;

// vectors (B, V, D) float32 -> (B, V (V - 1) / 2): pairs (1, 0), (2, 0), (2, 1), (3, 0), ...
Tensor dot_pairs(const Tensor& vectors) {
  const int64_t B = vectors.size(0), V = vectors.size(1), D = vectors.size(2), P = V * (V - 1) / 2;
  Tensor dots = at::empty({B, P}, vectors.options());
  const float* source = vectors.const_data_ptr<float>();
  float* target = dots.mutable_data_ptr<float>();
  at::parallel_for(0, B, kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const float* row = source + b * V * D;
      float* out = target + b * P;
      for (int64_t i = 1; i < V; ++i) {
        for (int64_t j = 0; j < i; ++j) {
          const float *left = row + i * D, *right = row + j * D;
          float sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t d = 0; d < D; ++d) sum += left[d] * right[d];
          *out++ = sum;
        }
      }
    }
  });
  return dots;
}

// grad (B, V (V - 1) / 2), vectors (B, V, D) -> gradient of the vectors.
Tensor dot_pairs_backward(const Tensor& grad, const Tensor& vectors) {
  const int64_t B = vectors.size(0), V = vectors.size(1), D = vectors.size(2), P = V * (V - 1) / 2;
  Tensor result = at::zeros_like(vectors);
  const float *source = vectors.const_data_ptr<float>(), *weight = grad.const_data_ptr<float>();
  float* target = result.mutable_data_ptr<float>();
  at::parallel_for(0, B, kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const float *row = source + b * V * D, *g = weight + b * P;
      float* out = target + b * V * D;
      for (int64_t i = 1; i < V; ++i) {
        for (int64_t j = 0; j < i; ++j, ++g) {
          const float *left = row + i * D, *right = row + j * D;
          float *to_left = out + i * D, *to_right = out + j * D;
#pragma omp simd
          for (int64_t d = 0; d < D; ++d) {
            to_left[d] += *g * right[d];
            to_right[d] += *g * left[d];
          }
        }
      }
    }
  });
  return result;
}

}  // namespace

TORCH_LIBRARY(shardgym_dot_pairs_cpu, m) {
  m.def("dot_pairs(Tensor vectors) -> Tensor");
  m.def("dot_pairs_backward(Tensor grad, Tensor vectors) -> Tensor");
}

TORCH_LIBRARY_IMPL(shardgym_dot_pairs_cpu, CPU, m) {
  m.impl("dot_pairs", dot_pairs);
  m.impl("dot_pairs_backward", dot_pairs_backward);
}
