// SIMD registers, small register-tiled matrix products and transposes, for the processor that compiles them.

#pragma once

#include <cstdint>

namespace {

using std::int32_t;
using std::int64_t;

// One SIMD register, and how many there are: tiles are sized so that their sums stay in registers.
#if defined(__AVX512F__)
constexpr int vector_bytes = 64, vector_registers = 32;
#elif defined(__AVX__)
constexpr int vector_bytes = 32, vector_registers = 16;
#elif defined(__aarch64__)
constexpr int vector_bytes = 16, vector_registers = 32;
#else
constexpr int vector_bytes = 16, vector_registers = 16;
#endif

template <typename T> struct Simd {
    static constexpr int64_t width = vector_bytes / sizeof(T);
    typedef T Vec __attribute__((vector_size(vector_bytes), aligned(alignof(T)), may_alias));
};
template <typename T> using Vec = typename Simd<T>::Vec;

template <typename T> int64_t padded(int64_t n) {
    constexpr int64_t width = Simd<T>::width;
    return (n + width - 1) / width * width;
}

// ---- small GEMMs: C (m, n) = or += A (m, k) B (k, n), n a multiple of the SIMD width ----

template <typename T, int M, int N>
inline __attribute__((always_inline)) void tile(int64_t depth, const T *a, int64_t a_row, int64_t a_col, const T *b,
                                                int64_t b_row, T *c, int64_t c_row, bool add) {
    constexpr int64_t width = Simd<T>::width;
    Vec<T> sum[M][N];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) sum[m][n] = add ? *(const Vec<T> *)(c + m * c_row + n * width) : Vec<T>{};
    for (int64_t k = 0; k < depth; ++k) {
        Vec<T> right[N];
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) right[n] = *(const Vec<T> *)(b + k * b_row + n * width);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
            const T left = a[m * a_row + k * a_col];
#pragma GCC unroll 16
            for (int n = 0; n < N; ++n) sum[m][n] += left * right[n];
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) *(Vec<T> *)(c + m * c_row + n * width) = sum[m][n];
}

// Columns of the widest strip, in registers.
constexpr int widest_strip = vector_registers >= 32 ? 4 : 2;

// All rows of one column strip of N registers.
template <typename T, int N>
void strip(int64_t rows, int64_t depth, const T *a, int64_t a_row, int64_t a_col, const T *b, int64_t b_row, T *c,
           int64_t c_row, bool add) {
    // Sums, a row of B and one number of A: N (most + 1) + 1 registers.
    constexpr int most = (vector_registers - 1) / N - 1 >= 8 ? 8 : 6;
    int64_t m = 0;
    for (; m + most <= rows; m += most)
        tile<T, most, N>(depth, a + m * a_row, a_row, a_col, b, b_row, c + m * c_row, c_row, add);
    for (; m + 4 <= rows; m += 4)
        tile<T, 4, N>(depth, a + m * a_row, a_row, a_col, b, b_row, c + m * c_row, c_row, add);
    for (; m + 2 <= rows; m += 2)
        tile<T, 2, N>(depth, a + m * a_row, a_row, a_col, b, b_row, c + m * c_row, c_row, add);
    for (; m < rows; ++m) tile<T, 1, N>(depth, a + m * a_row, a_row, a_col, b, b_row, c + m * c_row, c_row, add);
}

template <typename T>
void gemm(int64_t rows, int64_t columns, int64_t depth, const T *a, int64_t a_row, int64_t a_col, const T *b,
          int64_t b_row, T *c, int64_t c_row, bool add) {
    constexpr int64_t width = Simd<T>::width;
    int64_t n = 0;
    for (; n + widest_strip * width <= columns; n += widest_strip * width)
        strip<T, widest_strip>(rows, depth, a, a_row, a_col, b + n, b_row, c + n, c_row, add);
    const int64_t left = (columns - n) / width;
    if constexpr (widest_strip > 2) {
        if (left == 3) strip<T, 3>(rows, depth, a, a_row, a_col, b + n, b_row, c + n, c_row, add);
        if (left == 2) strip<T, 2>(rows, depth, a, a_row, a_col, b + n, b_row, c + n, c_row, add);
    }
    if (left == 1) strip<T, 1>(rows, depth, a, a_row, a_col, b + n, b_row, c + n, c_row, add);
}

// ---- products of one id's row: as `gemm`, for so few rows or so little depth that its loops would cost as much ----

template <typename T, int M>
void few_rows_fixed(int64_t columns, int64_t depth, const T *a, int64_t a_row, const T *b, int64_t b_row, T *c,
                    int64_t c_row, bool add) {
    constexpr int64_t width = Simd<T>::width;
    int64_t n = 0;
    for (; n + 2 * width <= columns; n += 2 * width)
        add ? tile<T, M, 2>(depth, a, a_row, 1, b + n, b_row, c + n, c_row, true)
            : tile<T, M, 2>(depth, a, a_row, 1, b + n, b_row, c + n, c_row, false);
    if (n < columns) tile<T, M, 1>(depth, a, a_row, 1, b + n, b_row, c + n, c_row, add);
}

// C (rows, columns) = or += A (rows, depth) B (depth, columns).
template <typename T>
void few_rows(int64_t rows, int64_t columns, int64_t depth, const T *a, int64_t a_row, const T *b, int64_t b_row, T *c,
              int64_t c_row, bool add) {
    switch (rows) {
    case 1: return few_rows_fixed<T, 1>(columns, depth, a, a_row, b, b_row, c, c_row, add);
    case 2: return few_rows_fixed<T, 2>(columns, depth, a, a_row, b, b_row, c, c_row, add);
    case 4: return few_rows_fixed<T, 4>(columns, depth, a, a_row, b, b_row, c, c_row, add);
    default: return gemm<T>(rows, columns, depth, a, a_row, 1, b, b_row, c, c_row, add);
    }
}

// One strip of N registers of C (rows, columns) += A^T B of A (K, rows): the K rows of B stay in registers.
template <typename T, int K, int N>
inline __attribute__((always_inline)) void outer_strip(int64_t rows, const T *a, int64_t a_row, const T *b,
                                                       int64_t b_row, T *c, int64_t c_row) {
    constexpr int64_t width = Simd<T>::width;
    Vec<T> right[K][N];
#pragma GCC unroll 16
    for (int k = 0; k < K; ++k)
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) right[k][n] = *(const Vec<T> *)(b + k * b_row + n * width);
#pragma GCC unroll 2
    for (int64_t m = 0; m < rows; ++m) {
        Vec<T> sum[N];
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) sum[n] = *(Vec<T> *)(c + m * c_row + n * width);
#pragma GCC unroll 16
        for (int k = 0; k < K; ++k)
#pragma GCC unroll 2
            for (int n = 0; n < N; ++n) sum[n] += a[k * a_row + m] * right[k][n];
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) *(Vec<T> *)(c + m * c_row + n * width) = sum[n];
    }
}

template <typename T, int K>
void outer_fixed(int64_t rows, int64_t columns, const T *a, int64_t a_row, const T *b, int64_t b_row, T *c,
                 int64_t c_row) {
    constexpr int64_t width = Simd<T>::width;
    int64_t n = 0;
    for (; n + 2 * width <= columns; n += 2 * width) outer_strip<T, K, 2>(rows, a, a_row, b + n, b_row, c + n, c_row);
    if (n < columns) outer_strip<T, K, 1>(rows, a, a_row, b + n, b_row, c + n, c_row);
}

// C (rows, columns) += A^T B of A (depth, rows), B (depth, columns).
template <typename T>
void add_outer(int64_t rows, int64_t columns, int64_t depth, const T *a, int64_t a_row, const T *b, int64_t b_row,
               T *c, int64_t c_row) {
    switch (depth) {
    case 1: return outer_fixed<T, 1>(rows, columns, a, a_row, b, b_row, c, c_row);
    case 2: return outer_fixed<T, 2>(rows, columns, a, a_row, b, b_row, c, c_row);
    case 4: return outer_fixed<T, 4>(rows, columns, a, a_row, b, b_row, c, c_row);
    default: return gemm<T>(rows, columns, depth, a, 1, a_row, b, b_row, c, c_row, true);
    }
}

// ---- transposing blocks of one register by one register ----

template <typename T> struct Lanes;
template <> struct Lanes<float> {
    typedef int32_t Mask __attribute__((vector_size(vector_bytes)));
};
template <> struct Lanes<double> {
    typedef int64_t Mask __attribute__((vector_size(vector_bytes)));
};

// One stage of the butterfly: swaps the off-diagonal step x step blocks of every 2 step x 2 step block.
template <typename T, int Step> inline __attribute__((always_inline)) void swap_blocks(Vec<T> *v) {
    constexpr int width = Simd<T>::width;
    typename Lanes<T>::Mask low, high;
#pragma GCC unroll 16
    for (int l = 0; l < width; ++l) {
        low[l] = (l & Step) ? width + l - Step : l;
        high[l] = (l & Step) ? width + l : l + Step;
    }
#pragma GCC unroll 16
    for (int i = 0; i < width; ++i) {
        if (i & Step) continue;
        const Vec<T> a = v[i], b = v[i + Step];
        v[i] = __builtin_shuffle(a, b, low);
        v[i + Step] = __builtin_shuffle(a, b, high);
    }
}

// to[c * to_row + r] = from[r * from_row + c]; columns a multiple of the width; to_row padded, its surplus is zeroed.
template <typename T>
void transpose(int64_t rows, int64_t columns, const T *from, int64_t from_row, T *to, int64_t to_row) {
    constexpr int64_t width = Simd<T>::width;
    Vec<T> block[width];
    for (int64_t r = 0; r < to_row; r += width)
        for (int64_t c = 0; c < columns; c += width) {
#pragma GCC unroll 16
            for (int i = 0; i < width; ++i)
                block[i] = r + i < rows ? *(const Vec<T> *)(from + (r + i) * from_row + c) : Vec<T>{};
            if constexpr (width > 8) swap_blocks<T, 8>(block);
            if constexpr (width > 4) swap_blocks<T, 4>(block);
            if constexpr (width > 2) swap_blocks<T, 2>(block);
            swap_blocks<T, 1>(block);
#pragma GCC unroll 16
            for (int i = 0; i < width; ++i) *(Vec<T> *)(to + (c + i) * to_row + r) = block[i];
        }
}

}  // namespace
