// Deduplication of jagged batches on the CPU: equal rows, whole-row gathers, overlapping windows.
// Each operator has a plain torch or Python twin (dedup.py, ops.py, windows.py, window_sums.py) that the tests compare with.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <cstring>
#include <vector>

namespace {

using at::Tensor;

constexpr uint64_t kMix = 0x9E3779B97F4A7C15ull;
constexpr int64_t kRowsPerTask = 256;
constexpr int64_t kColumns = 16;

inline uint64_t fold(uint64_t hash, uint64_t word) {
  const auto wide = static_cast<unsigned __int128>(hash ^ word) * (kMix ^ (word << 1 | 1));
  return static_cast<uint64_t>(wide) ^ static_cast<uint64_t>(wide >> 64);
}

uint64_t hash_bytes(uint64_t hash, const char* bytes, size_t count) {
  for (; count >= 8; bytes += 8, count -= 8) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    hash = fold(hash + kMix, word);
  }
  uint64_t tail = 0;
  std::memcpy(&tail, bytes, count);
  return fold(hash + kMix, tail);
}

// The lists of F keys and B rows, with what lies beside each value (ids, and weights when there are any).
struct Batch {
  struct Column {
    const char* bytes;
    size_t width;
  };
  std::vector<Column> columns;
  const int64_t* offsets;
  int64_t F, B;

  uint64_t hash(int64_t row) const {
    uint64_t hash = kMix;
    for (int64_t f = 0; f < F; ++f) {
      const int64_t start = offsets[f * B + row], length = offsets[f * B + row + 1] - start;
      hash = fold(hash, static_cast<uint64_t>(length));
      for (const auto& column : columns) {
        hash = hash_bytes(hash, column.bytes + start * column.width, length * column.width);
      }
    }
    return hash;
  }

  bool same(int64_t a, int64_t b) const {
    for (int64_t f = 0; f < F; ++f) {
      const int64_t at = offsets[f * B + a], other = offsets[f * B + b];
      const int64_t length = offsets[f * B + a + 1] - at;
      if (length != offsets[f * B + b + 1] - other) return false;
      for (const auto& column : columns) {
        if (std::memcmp(column.bytes + at * column.width, column.bytes + other * column.width,
                        length * column.width) != 0) {
          return false;
        }
      }
    }
    return true;
  }
};

// values (T,), weights (T,) or none, offsets (F * B + 1,) int64 -> first (U,), inverse (B,) int64.
std::tuple<Tensor, Tensor> unique_rows(const Tensor& values, const std::optional<Tensor>& weights,
                                       const Tensor& offsets, int64_t keys, bool rows_sorted) {
  const int64_t B = (offsets.numel() - 1) / keys;
  Batch batch{{{static_cast<const char*>(values.const_data_ptr()), values.nbytes() / std::max<int64_t>(1, values.size(0))}},
              offsets.const_data_ptr<int64_t>(), keys, B};
  if (weights) {
    batch.columns.push_back({static_cast<const char*>(weights->const_data_ptr()), static_cast<size_t>(weights->element_size())});
  }
  Tensor inverse = at::empty({B}, offsets.options());
  int64_t* kind = inverse.mutable_data_ptr<int64_t>();
  std::vector<int64_t> first;
  if (rows_sorted) {
    std::vector<char> starts(B);
    at::parallel_for(0, B, kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) starts[row] = row == 0 || !batch.same(row, row - 1);
    });
    for (int64_t row = 0; row < B; ++row) {
      if (starts[row]) first.push_back(row);
      kind[row] = static_cast<int64_t>(first.size()) - 1;
    }
  } else {
    std::vector<uint64_t> hashes(B);
    at::parallel_for(0, B, kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) hashes[row] = batch.hash(row);
    });
    size_t slots = 16;
    while (slots < static_cast<size_t>(2 * B)) slots *= 2;
    std::vector<int64_t> table(slots, -1);  // slot -> kind
    for (int64_t row = 0; row < B; ++row) {
      size_t slot = hashes[row] & (slots - 1);
      while (table[slot] >= 0 &&
             (hashes[first[table[slot]]] != hashes[row] || !batch.same(first[table[slot]], row))) {
        slot = (slot + 1) & (slots - 1);
      }
      if (table[slot] < 0) {
        table[slot] = static_cast<int64_t>(first.size());
        first.push_back(row);
      }
      kind[row] = table[slot];
    }
  }
  Tensor firsts = at::empty({static_cast<int64_t>(first.size())}, offsets.options());
  if (!first.empty()) std::memcpy(firsts.mutable_data_ptr(), first.data(), first.size() * sizeof(int64_t));
  return {firsts, inverse};
}

// For each unique row, which rows of the batch have it: rows[bounds[u]] .. rows[bounds[u + 1]], in order.
struct RowsOfUnique {
  std::vector<int64_t> bounds, rows;
  RowsOfUnique(const int64_t* inverse, int64_t B, int64_t U) : bounds(U + 2, 0), rows(B) {
    for (int64_t b = 0; b < B; ++b) ++bounds[inverse[b] + 2];
    for (int64_t u = 0; u < U; ++u) bounds[u + 2] += bounds[u + 1];
    for (int64_t b = 0; b < B; ++b) rows[bounds[inverse[b] + 1]++] = b;
  }
};

std::vector<int64_t> picked_offsets(const int64_t* offsets, const int64_t* index, int64_t M) {
  std::vector<int64_t> out(M + 1, 0);
  for (int64_t i = 0; i < M; ++i) out[i + 1] = out[i] + offsets[index[i] + 1] - offsets[index[i]];
  return out;
}

// values (T, ...), offsets (N + 1,) and index (M,) int64 -> the picked rows' values (T', ...).
Tensor select_rows(const Tensor& values, const Tensor& offsets, const Tensor& index) {
  const int64_t M = index.numel(), N = offsets.numel() - 1;
  const int64_t *from = offsets.const_data_ptr<int64_t>(), *rows = index.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < M; ++i) TORCH_CHECK_INDEX(rows[i] >= 0 && rows[i] < N, "row ", rows[i], " of ", N);
  const auto to = picked_offsets(from, rows, M);
  auto shape = values.sizes().vec();
  shape[0] = to[M];
  Tensor picked = at::empty(shape, values.options());
  const int64_t width = values.element_size() * (values.numel() / std::max<int64_t>(1, values.size(0)));
  const char* source = static_cast<const char*>(values.const_data_ptr());
  char* target = static_cast<char*>(picked.mutable_data_ptr());
  at::parallel_for(0, M, kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(target + to[i] * width, source + from[rows[i]] * width, (to[i + 1] - to[i]) * width);
    }
  });
  return picked;
}

// The transpose of select_rows: grad (T', D) -> (T, D), picks of a row summed in the order of the index.
Tensor sum_rows(const Tensor& grad, const Tensor& offsets, const Tensor& index) {
  const int64_t M = index.numel(), N = offsets.numel() - 1, D = grad.size(1);
  const int64_t *into = offsets.const_data_ptr<int64_t>(), *rows = index.const_data_ptr<int64_t>();
  const auto from = picked_offsets(into, rows, M);
  const RowsOfUnique of(rows, M, N);
  Tensor sum = at::empty({into[N], D}, grad.options());
  AT_DISPATCH_FLOATING_TYPES(grad.scalar_type(), "sum_rows", [&] {
    const scalar_t* source = grad.const_data_ptr<scalar_t>();
    scalar_t* target = sum.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, N, 64, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t numbers = (into[r + 1] - into[r]) * D;
        scalar_t* out = target + into[r] * D;
        if (of.bounds[r] == of.bounds[r + 1]) std::fill(out, out + numbers, scalar_t(0));
        for (int64_t p = of.bounds[r]; p < of.bounds[r + 1]; ++p) {
          const scalar_t* in = source + from[of.rows[p]] * D;
          if (p == of.bounds[r]) {
            std::copy(in, in + numbers, out);
          } else {
            for (int64_t k = 0; k < numbers; ++k) out[k] += in[k];
          }
        }
      }
    });
  });
  return sum;
}

// Tables side by side: unique[k] (U, D_k) float32 of table k, whose rows inverses[group[k]] (B,) names -> (B, sum D_k).
Tensor expand_columns(const std::vector<Tensor>& unique, const std::vector<Tensor>& inverses,
                      const std::vector<int64_t>& group) {
  const int64_t B = inverses[0].numel(), K = static_cast<int64_t>(unique.size());
  std::vector<int64_t> column(K + 1, 0);
  for (int64_t k = 0; k < K; ++k) column[k + 1] = column[k] + unique[k].size(1);
  Tensor out = at::empty({B, column[K]}, unique[0].options());
  float* target = out.mutable_data_ptr<float>();
  at::parallel_for(0, B, 64, [&](int64_t begin, int64_t end) {
    for (int64_t k = 0; k < K; ++k) {
      const float* source = unique[k].const_data_ptr<float>();
      const int64_t* row = inverses[group[k]].const_data_ptr<int64_t>();
      const int64_t D = column[k + 1] - column[k];
      for (int64_t b = begin; b < end; ++b) {
        std::memcpy(target + b * column[K] + column[k], source + row[b] * D, D * sizeof(float));
      }
    }
  });
  return out;
}

// The transpose of expand_columns: grad (B, sum dims[k]) -> for each table k (rows[group[k]], dims[k]).
std::vector<Tensor> sum_columns(const Tensor& grad, const std::vector<Tensor>& inverses,
                                const std::vector<int64_t>& group, const std::vector<int64_t>& rows,
                                const std::vector<int64_t>& dims) {
  const int64_t B = grad.size(0), width = grad.size(1);
  std::vector<RowsOfUnique> members;
  for (size_t g = 0; g < inverses.size(); ++g) members.emplace_back(inverses[g].const_data_ptr<int64_t>(), B, rows[g]);
  const float* source = grad.const_data_ptr<float>();
  std::vector<Tensor> sums;
  int64_t column = 0;
  for (size_t k = 0; k < dims.size(); column += dims[k++]) {
    const auto& of = members[group[k]];
    const int64_t D = dims[k];
    Tensor sum = at::zeros({rows[group[k]], D}, grad.options());
    float* target = sum.mutable_data_ptr<float>();
    at::parallel_for(0, rows[group[k]], 64, [&](int64_t begin, int64_t end) {
      for (int64_t u = begin; u < end; ++u) {
        for (int64_t p = of.bounds[u]; p < of.bounds[u + 1]; ++p) {
          const float* in = source + of.rows[p] * width + column;
          for (int64_t d = 0; d < D; ++d) target[u * D + d] += in[d];
        }
      }
    });
    sums.push_back(sum);
  }
  return sums;
}

// Windows laid one after the other: values (F, N), starts and lengths (B,) int64 -> (F * T,), key-major.
Tensor window_values(const Tensor& values, const Tensor& starts, const Tensor& lengths) {
  const int64_t F = values.size(0), N = values.size(1), B = starts.numel();
  const int64_t *start = starts.const_data_ptr<int64_t>(), *length = lengths.const_data_ptr<int64_t>();
  std::vector<int64_t> to(B + 1, 0);
  for (int64_t b = 0; b < B; ++b) {
    TORCH_CHECK_INDEX(start[b] >= 0 && length[b] >= 0 && start[b] + length[b] <= N, "window ", b, " of ", N, " values");
    to[b + 1] = to[b] + length[b];
  }
  Tensor laid = at::empty({F * to[B]}, values.options());
  const int64_t width = values.element_size();
  const char* source = static_cast<const char*>(values.const_data_ptr());
  char* target = static_cast<char*>(laid.mutable_data_ptr());
  at::parallel_for(0, B, kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t f = 0; f < F; ++f) {
      for (int64_t b = begin; b < end; ++b) {
        std::memcpy(target + (f * to[B] + to[b]) * width, source + (f * N + start[b]) * width, length[b] * width);
      }
    }
  });
  return laid;
}

// Sums of windows: values (N, D), starts and lengths (B,) int64 -> (B, D). A window's sum is that of the window before
// it with what came and went, in double precision, or its own where that is less work.
Tensor window_sums(const Tensor& values, const Tensor& starts, const Tensor& lengths) {
  const int64_t D = values.size(1), B = starts.numel();
  const int64_t *start = starts.const_data_ptr<int64_t>(), *length = lengths.const_data_ptr<int64_t>();
  Tensor sums = at::empty({B, D}, values.options());
  AT_DISPATCH_FLOATING_TYPES(values.scalar_type(), "window_sums", [&] {
    const scalar_t* source = values.const_data_ptr<scalar_t>();
    scalar_t* target = sums.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, B, kRowsPerTask, [&](int64_t begin, int64_t end) {
      std::vector<double> sum(D, 0.0);
      const auto add = [&](int64_t from, int64_t to, double sign) {
        for (int64_t n = from; n < to; ++n) {
          const scalar_t* in = source + n * D;
          for (int64_t d = 0; d < D; ++d) sum[d] += sign * static_cast<double>(in[d]);
        }
      };
      int64_t low = 0, high = 0;  // the window that is summed
      for (int64_t b = begin; b < end; ++b) {
        const int64_t next_low = start[b], next_high = next_low + length[b];
        if (std::abs(next_low - low) + std::abs(next_high - high) < length[b]) {
          add(next_low, low, 1);
          add(low, next_low, -1);
          add(high, next_high, 1);
          add(next_high, high, -1);
        } else {
          std::fill(sum.begin(), sum.end(), 0.0);
          add(next_low, next_high, 1);
        }
        low = next_low;
        high = next_high;
        for (int64_t d = 0; d < D; ++d) target[b * D + d] = static_cast<scalar_t>(sum[d]);
      }
    });
  });
  return sums;
}

// The transpose of window_sums: grad (B, D) -> (N, D), each position the sum of the windows that have it.
Tensor spread_windows(const Tensor& grad, const Tensor& starts, const Tensor& lengths, int64_t positions) {
  const int64_t D = grad.size(1), B = starts.numel();
  const int64_t *start = starts.const_data_ptr<int64_t>(), *length = lengths.const_data_ptr<int64_t>();
  Tensor spread = at::empty({positions, D}, grad.options());
  AT_DISPATCH_FLOATING_TYPES(grad.scalar_type(), "spread_windows", [&] {
    const scalar_t* source = grad.const_data_ptr<scalar_t>();
    scalar_t* target = spread.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, (D + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
      std::vector<double> change((positions + 1) * kColumns);
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kColumns, width = std::min(kColumns, D - first);
        std::fill(change.begin(), change.end(), 0.0);
        for (int64_t b = 0; b < B; ++b) {
          const scalar_t* in = source + b * D + first;
          double* low = change.data() + start[b] * kColumns;
          double* high = low + length[b] * kColumns;
          for (int64_t d = 0; d < width; ++d) {
            low[d] += static_cast<double>(in[d]);
            high[d] -= static_cast<double>(in[d]);
          }
        }
        double open[kColumns] = {};
        for (int64_t n = 0; n < positions; ++n) {
          const double* in = change.data() + n * kColumns;
          scalar_t* out = target + n * D + first;
          for (int64_t d = 0; d < width; ++d) out[d] = static_cast<scalar_t>(open[d] += in[d]);
        }
      }
    });
  });
  return spread;
}

// Windows over shared values. channels (C, T) int64: what must agree at a position; offsets (B + 1,); order (B,): rows
// as they are read. -> kept (N,): positions of T that make up the shared values; starts (B,): each row's window there.
std::tuple<Tensor, Tensor> find_windows(const Tensor& channels, const Tensor& offsets, const Tensor& order) {
  const int64_t C = channels.size(0), T = channels.size(1), B = order.numel();
  const int64_t *ids = channels.const_data_ptr<int64_t>(), *at = offsets.const_data_ptr<int64_t>();
  const int64_t* rows = order.const_data_ptr<int64_t>();
  const auto same = [&](int64_t a, int64_t b) {
    for (int64_t c = 0; c < C; ++c) {
      if (ids[c * T + a] != ids[c * T + b]) return false;
    }
    return true;
  };
  Tensor starts = at::zeros({offsets.numel() - 1}, offsets.options());
  int64_t* start = starts.mutable_data_ptr<int64_t>();
  std::vector<int64_t> kept, border;
  int64_t last = 0;  // where the last window starts
  for (int64_t i = 0; i < B; ++i) {
    const int64_t begin = at[rows[i]], length = at[rows[i] + 1] - begin;
    if (length == 0) continue;
    // Knuth-Morris-Pratt: the row's longest prefix that ends the last window, or the row inside it.
    border.assign(length, 0);
    for (int64_t p = 1, j = 0; p < length; ++p) {
      while (j > 0 && !same(begin + p, begin + j)) j = border[j - 1];
      j += same(begin + p, begin + j);
      border[p] = j;
    }
    const int64_t end = static_cast<int64_t>(kept.size());
    int64_t matched = 0, p = last;
    for (; p < end && matched < length; ++p) {
      while (matched > 0 && !same(kept[p], begin + matched)) matched = border[matched - 1];
      matched += same(kept[p], begin + matched);
    }
    last = start[rows[i]] = p - matched;
    for (int64_t k = matched; k < length; ++k) kept.push_back(begin + k);
  }
  Tensor keeps = at::empty({static_cast<int64_t>(kept.size())}, offsets.options());
  if (!kept.empty()) std::memcpy(keeps.mutable_data_ptr(), kept.data(), kept.size() * sizeof(int64_t));
  return {keeps, starts};
}

}  // namespace

TORCH_LIBRARY(shardgym_dedup_cpu, m) {
  m.def("unique_rows(Tensor values, Tensor? weights, Tensor offsets, int keys, bool rows_sorted) -> (Tensor, Tensor)");
  m.def("select_rows(Tensor values, Tensor offsets, Tensor index) -> Tensor");
  m.def("sum_rows(Tensor grad, Tensor offsets, Tensor index) -> Tensor");
  m.def("expand_columns(Tensor[] unique, Tensor[] inverses, int[] group) -> Tensor");
  m.def("sum_columns(Tensor grad, Tensor[] inverses, int[] group, int[] rows, int[] dims) -> Tensor[]");
  m.def("window_values(Tensor values, Tensor starts, Tensor lengths) -> Tensor");
  m.def("window_sums(Tensor values, Tensor starts, Tensor lengths) -> Tensor");
  m.def("spread_windows(Tensor grad, Tensor starts, Tensor lengths, int positions) -> Tensor");
  m.def("find_windows(Tensor channels, Tensor offsets, Tensor order) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(shardgym_dedup_cpu, CPU, m) {
  m.impl("unique_rows", unique_rows);
  m.impl("select_rows", select_rows);
  m.impl("sum_rows", sum_rows);
  m.impl("expand_columns", expand_columns);
  m.impl("sum_columns", sum_columns);
  m.impl("window_values", window_values);
  m.impl("window_sums", window_sums);
  m.impl("spread_windows", spread_windows);
  m.impl("find_windows", find_windows);
}
