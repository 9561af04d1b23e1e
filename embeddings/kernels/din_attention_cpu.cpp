// DIN's attention (Zhou et al., arXiv 1706.06978, section 4.3) of many candidates over histories that samples share.
// A history is laid out once per row; for each of its samples, hidden units, scores and the weighted sum stay in cache.
// Backward computes the hidden units again, so that nothing of the size of all pairs is ever written to memory.
// Plain torch twin: DINAttention.reference in sequence_layers.py.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

namespace {

using at::Tensor;

// Numbers of a vector register: a wider vector would be kept in memory.
#ifdef __AVX512F__
constexpr int64_t kLanes = 16;
#else
constexpr int64_t kLanes = 8;
#endif

inline int64_t padded(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Lanes that the compiler keeps in vector registers, whichever widths the processor has; loads need no alignment.
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float)), aligned(sizeof(float)), may_alias));

template <int kRows>
inline void product_rows(int64_t K, int64_t N, const float* a, int64_t a_row, int64_t a_k, const float* b,
                         int64_t b_k, float* c, int64_t c_row) {
  for (int64_t n = 0; n < N; n += kLanes) {
    Lanes sum[kRows];
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) sum[r] = *reinterpret_cast<const Lanes*>(c + r * c_row + n);
    for (int64_t k = 0; k < K; ++k) {
      const Lanes in = *reinterpret_cast<const Lanes*>(b + k * b_k + n);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) sum[r] += a[r * a_row + k * a_k] * in;
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) *reinterpret_cast<Lanes*>(c + r * c_row + n) = sum[r];
  }
}

// C (M, N) += A (M, K) B (K, N); A with any strides, rows of B and C contiguous, N a multiple of the lanes.
void add_product(int64_t M, int64_t K, int64_t N, const float* a, int64_t a_row, int64_t a_k, const float* b,
                 int64_t b_k, float* c, int64_t c_row) {
  int64_t m = 0;
  for (; m + 12 <= M; m += 12) product_rows<12>(K, N, a + m * a_row, a_row, a_k, b, b_k, c + m * c_row, c_row);
  for (; m + 4 <= M; m += 4) product_rows<4>(K, N, a + m * a_row, a_row, a_k, b, b_k, c + m * c_row, c_row);
  for (; m < M; ++m) product_rows<1>(K, N, a + m * a_row, a_row, a_k, b, b_k, c + m * c_row, c_row);
}

struct Shapes {
  int64_t D, H, D_padded;
};

// One row's history: keys (L, D_padded), their transpose (D, L_padded), and their part of the hidden units (H, L_padded).
struct History {
  int64_t L, L_padded;
  std::vector<float> keys, transposed, hidden;

  void load(const Shapes& s, const float* values, const float* key_part, int64_t length) {
    L = length;
    L_padded = padded(L);
    keys.assign(L * s.D_padded, 0.f);
    transposed.assign(s.D * L_padded, 0.f);
    hidden.assign(s.H * L_padded, 0.f);
    for (int64_t l = 0; l < L; ++l) {
      std::copy_n(values + l * s.D, s.D, keys.data() + l * s.D_padded);
      for (int64_t d = 0; d < s.D; ++d) transposed[d * L_padded + l] = values[l * s.D + d];
      for (int64_t h = 0; h < s.H; ++h) hidden[h * L_padded + l] = key_part[l * s.H + h];
    }
  }
};

struct Weights {
  const float *product, *slope, *score, *bias;
};

// One candidate's hidden units before the activation (H, L_padded), product weights (H, D_padded) and scores.
struct Candidate {
  std::vector<float> product, hidden, scores;

  void run(const Shapes& s, const Weights& w, const History& history, const float* query, const float* query_part) {
    product.assign(s.H * s.D_padded, 0.f);
    hidden = history.hidden;
    scores.assign(history.L_padded, w.bias[0]);
    for (int64_t h = 0; h < s.H; ++h) {
      for (int64_t d = 0; d < s.D; ++d) product[h * s.D_padded + d] = query[d] * w.product[h * s.D + d];
      float* row = hidden.data() + h * history.L_padded;
      for (int64_t l = 0; l < history.L_padded; ++l) row[l] += query_part[h];
    }
    add_product(s.H, s.D, history.L_padded, product.data(), s.D_padded, 1, history.transposed.data(), history.L_padded,
                hidden.data(), history.L_padded);
    for (int64_t h = 0; h < s.H; ++h) {
      const float* row = hidden.data() + h * history.L_padded;
      float* out = scores.data();
      const float up = w.score[h], down = w.score[h] * w.slope[h];
#pragma omp simd
      for (int64_t l = 0; l < history.L_padded; ++l) out[l] += (row[l] > 0 ? up : down) * row[l];
    }
  }
};

struct Rows {
  const int64_t *starts, *lengths, *bounds, *order;
};

// query (B, D), query_part (B, H), values (P, D), key_part (P, H); rows r have positions starts[r] .. + lengths[r] and
// samples order[bounds[r]] .. order[bounds[r + 1] - 1] -> pooled (B, D).
Tensor din_attention(const Tensor& query, const Tensor& query_part, const Tensor& values, const Tensor& key_part,
                     const Tensor& product, const Tensor& slope, const Tensor& score, const Tensor& bias,
                     const Tensor& starts, const Tensor& lengths, const Tensor& bounds, const Tensor& order) {
  const Shapes s{query.size(1), query_part.size(1), padded(query.size(1))};
  const Weights w{product.const_data_ptr<float>(), slope.const_data_ptr<float>(), score.const_data_ptr<float>(),
                  bias.const_data_ptr<float>()};
  const Rows rows{starts.const_data_ptr<int64_t>(), lengths.const_data_ptr<int64_t>(),
                  bounds.const_data_ptr<int64_t>(), order.const_data_ptr<int64_t>()};
  const float *q = query.const_data_ptr<float>(), *qp = query_part.const_data_ptr<float>();
  const float *v = values.const_data_ptr<float>(), *kp = key_part.const_data_ptr<float>();
  Tensor pooled = at::zeros_like(query);
  float* out = pooled.mutable_data_ptr<float>();
  at::parallel_for(0, starts.numel(), 1, [&](int64_t begin, int64_t end) {
    History history;
    Candidate candidate;
    std::vector<float> sum(s.D_padded);
    for (int64_t r = begin; r < end; ++r) {
      history.load(s, v + rows.starts[r] * s.D, kp + rows.starts[r] * s.H, rows.lengths[r]);
      for (int64_t at = rows.bounds[r]; at < rows.bounds[r + 1]; ++at) {
        const int64_t b = rows.order[at];
        candidate.run(s, w, history, q + b * s.D, qp + b * s.H);
        std::fill(sum.begin(), sum.end(), 0.f);
        add_product(1, history.L, s.D_padded, candidate.scores.data(), 0, 1, history.keys.data(), s.D_padded,
                    sum.data(), s.D_padded);
        std::copy_n(sum.data(), s.D, out + b * s.D);
      }
    }
  });
  return pooled;
}

// Gradients of what one thread has summed up: of the values, the keys' part, and the weights.
struct Gradients {
  std::vector<float> values, key_part, product, slope, score;
  float bias = 0;
  Gradients(const Shapes& s, int64_t P)
      : values(P * s.D), key_part(P * s.H), product(s.H * s.D), slope(s.H), score(s.H) {}
};

void add_into(const Tensor& total, const std::vector<float>& part) {
  float* out = total.mutable_data_ptr<float>();
  for (size_t i = 0; i < part.size(); ++i) out[i] += part[i];
}

// Gradients of query, query_part, values, key_part, product, slope, score and bias.
std::vector<Tensor> din_attention_backward(const Tensor& grad, const Tensor& query, const Tensor& query_part,
                                           const Tensor& values, const Tensor& key_part, const Tensor& product,
                                           const Tensor& slope, const Tensor& score, const Tensor& bias,
                                           const Tensor& starts, const Tensor& lengths, const Tensor& bounds,
                                           const Tensor& order) {
  const Shapes s{query.size(1), query_part.size(1), padded(query.size(1))};
  const Weights w{product.const_data_ptr<float>(), slope.const_data_ptr<float>(), score.const_data_ptr<float>(),
                  bias.const_data_ptr<float>()};
  const Rows rows{starts.const_data_ptr<int64_t>(), lengths.const_data_ptr<int64_t>(),
                  bounds.const_data_ptr<int64_t>(), order.const_data_ptr<int64_t>()};
  const float *q = query.const_data_ptr<float>(), *qp = query_part.const_data_ptr<float>();
  const float *v = values.const_data_ptr<float>(), *kp = key_part.const_data_ptr<float>();
  const float* g = grad.const_data_ptr<float>();
  const int64_t R = starts.numel(), P = values.size(0);
  Tensor d_query = at::zeros_like(query), d_query_part = at::zeros_like(query_part);
  float *dq = d_query.mutable_data_ptr<float>(), *dqp = d_query_part.mutable_data_ptr<float>();
  // One share of the rows per thread, and sums of its own: windows of different rows may overlap.
  const int64_t shares = std::max<int64_t>(1, std::min<int64_t>(R, at::get_num_threads()));
  std::vector<Gradients> of_share(shares, Gradients(s, P));
  at::parallel_for(0, shares, 1, [&](int64_t first, int64_t last) {
    for (int64_t share = first; share < last; ++share) {
      Gradients& sums = of_share[share];
      History history;
      Candidate candidate;
      std::vector<float> d_hidden, d_product, d_keys, d_key_part, d_scores, g_padded(s.D_padded, 0.f);
      for (int64_t r = R * share / shares; r < R * (share + 1) / shares; ++r) {
        history.load(s, v + rows.starts[r] * s.D, kp + rows.starts[r] * s.H, rows.lengths[r]);
        const int64_t L = history.L, Lp = history.L_padded;
        d_keys.assign(L * s.D_padded, 0.f);
        d_key_part.assign(s.H * Lp, 0.f);
        for (int64_t at = rows.bounds[r]; at < rows.bounds[r + 1]; ++at) {
          const int64_t b = rows.order[at];
          candidate.run(s, w, history, q + b * s.D, qp + b * s.H);
          std::copy_n(g + b * s.D, s.D, g_padded.data());
          d_scores.assign(Lp, 0.f);
          add_product(1, s.D, Lp, g_padded.data(), 0, 1, history.transposed.data(), Lp, d_scores.data(), Lp);
          add_product(L, 1, s.D_padded, candidate.scores.data(), 1, 0, g_padded.data(), 0, d_keys.data(), s.D_padded);
          for (int64_t l = 0; l < L; ++l) sums.bias += d_scores[l];
          d_hidden.assign(s.H * Lp, 0.f);
          for (int64_t h = 0; h < s.H; ++h) {
            const float* hidden = candidate.hidden.data() + h * Lp;
            float *out = d_hidden.data() + h * Lp, *part = d_key_part.data() + h * Lp;
            float active = 0, negative = 0, whole = 0;
            const float slope_of_unit = w.slope[h], score_of_unit = w.score[h];
            const float* from_scores = d_scores.data();
#pragma omp simd reduction(+ : active, negative, whole)
            for (int64_t l = 0; l < L; ++l) {
              const float both = from_scores[l] * hidden[l];
              const float each = from_scores[l] * score_of_unit * (hidden[l] > 0 ? 1.f : slope_of_unit);
              active += hidden[l] > 0 ? both : slope_of_unit * both;
              negative += hidden[l] > 0 ? 0.f : both;
              out[l] = each;
              part[l] += each;
              whole += each;
            }
            sums.score[h] += active;
            sums.slope[h] += w.score[h] * negative;
            dqp[b * s.H + h] = whole;
          }
          d_product.assign(s.H * s.D_padded, 0.f);
          add_product(s.H, L, s.D_padded, d_hidden.data(), Lp, 1, history.keys.data(), s.D_padded, d_product.data(),
                      s.D_padded);
          add_product(L, s.H, s.D_padded, d_hidden.data(), 1, Lp, candidate.product.data(), s.D_padded, d_keys.data(),
                      s.D_padded);
          float* into_query = dq + b * s.D;
          const float* own_query = q + b * s.D;
          for (int64_t h = 0; h < s.H; ++h) {
            const float *each = d_product.data() + h * s.D_padded, *weight = w.product + h * s.D;
            float* into_weight = sums.product.data() + h * s.D;
#pragma omp simd
            for (int64_t d = 0; d < s.D; ++d) {
              into_query[d] += each[d] * weight[d];
              into_weight[d] += each[d] * own_query[d];
            }
          }
        }
        for (int64_t l = 0; l < L; ++l) {
          float* into = sums.values.data() + (rows.starts[r] + l) * s.D;
          for (int64_t d = 0; d < s.D; ++d) into[d] += d_keys[l * s.D_padded + d];
          float* part = sums.key_part.data() + (rows.starts[r] + l) * s.H;
          for (int64_t h = 0; h < s.H; ++h) part[h] += d_key_part[h * Lp + l];
        }
      }
    }
  });
  std::vector<Tensor> total{d_query, d_query_part};
  for (const Tensor& of : {values, key_part, product, slope, score, bias}) total.push_back(at::zeros_like(of));
  for (const Gradients& sums : of_share) {
    add_into(total[2], sums.values);
    add_into(total[3], sums.key_part);
    add_into(total[4], sums.product);
    add_into(total[5], sums.slope);
    add_into(total[6], sums.score);
    *total[7].mutable_data_ptr<float>() += sums.bias;
  }
  return total;
}

}  // namespace

TORCH_LIBRARY(shardgym_din_attention_cpu, m) {
  m.def(
      "din_attention(Tensor query, Tensor query_part, Tensor values, Tensor key_part, Tensor product, Tensor slope, "
      "Tensor score, Tensor bias, Tensor starts, Tensor lengths, Tensor bounds, Tensor order) -> Tensor");
  m.def(
      "din_attention_backward(Tensor grad, Tensor query, Tensor query_part, Tensor values, Tensor key_part, "
      "Tensor product, Tensor slope, Tensor score, Tensor bias, Tensor starts, Tensor lengths, Tensor bounds, "
      "Tensor order) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(shardgym_din_attention_cpu, CPU, m) {
  m.impl("din_attention", din_attention);
  m.impl("din_attention_backward", din_attention_backward);
}
