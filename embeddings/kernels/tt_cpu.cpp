// Tensor-train look-up on the CPU: distinct ids, products shared by prefix, small register-tiled GEMMs, threads.
//
// A table has three cores G1 (p1, q1, r1), G2 (p2, r1, q2, r2), G3 (p3, r2, q3). An id is (i1, i2, i3), the last fastest.
// The distinct ids of a batch are visited by (i2, i1, i3): for one i2, G2[i2] stays in the first-level cache while the
// products G1[i1] G2[i2] of all prefixes (i1, i2) in use come from one GEMM over stacked G1 slices. Forward multiplies
// each product by the G3 slices of its ids; backward makes the products again instead of keeping them, adds up the
// gradient of each product, and turns those into core gradients by two more GEMMs. A chunk of i2 values belongs to one
// task: G2's gradient is written by it alone, those of G1 and G3 go to buffers of the chunk that are added in order, so
// the result does not depend on timing.
//
// Plain C interface, called through ctypes; kernels/tt_cpu.py mirrors `Table` and owns all memory.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include <omp.h>

namespace {

using std::int32_t;
using std::int64_t;

// One SIMD register's worth of numbers; the compiler splits it where registers are narrower.
template <typename T> struct Simd {
    static constexpr int64_t width = 64 / sizeof(T);
    typedef T Vec __attribute__((vector_size(64), aligned(alignof(T)), may_alias));
};
template <typename T> using Vec = typename Simd<T>::Vec;

template <typename T> int64_t padded(int64_t n) {
    constexpr int64_t width = Simd<T>::width;
    return (n + width - 1) / width * width;
}

}  // namespace

extern "C" {

// One table's part of a call. Plan arrays have room for all its look-ups; `distinct` of them are used.
struct Table {
    int64_t p1, p2, p3, q1, q2, q3, r1, r2;
    int64_t dim;       // numbers of a row that are kept, <= q1 q2 q3
    int64_t column;    // where its outputs start
    int64_t begin;     // its look-ups are [begin, end) of the batch's
    int64_t end;
    const void *g1, *g2, *g3;
    const void *hot_rows;        // (slots, dim)
    const int64_t *hot_keys;     // ascending visit keys of the hot ids
    const int32_t *hot_slots;    // their rows in hot_rows
    int64_t hot_count;
    // Written by the plan:
    int32_t *order;     // look-ups, grouped by distinct id
    int32_t *segment;   // (distinct + 1) where each id's look-ups start in order
    int32_t *factor;    // (3, look-ups) i1, i2, i3 of each distinct id
    int32_t *slot;      // hot slot of each distinct id, or -1
    int64_t distinct;
    int64_t hot_distinct;
    // Used by forward: (distinct, dim), as `turned_rows` says.
    void *rows;
    // Written by backward; hot_grad (hot_distinct, dim) goes with hot_used (hot_distinct,).
    void *d1, *d2, *d3;
    void *hot_grad;
    int64_t *hot_used;
};

}  // extern "C"

namespace {

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

// All rows of one column strip of N registers.
template <typename T, int N>
void strip(int64_t rows, int64_t depth, const T *a, int64_t a_row, int64_t a_col, const T *b, int64_t b_row, T *c,
           int64_t c_row, bool add) {
    constexpr int most = N >= 3 ? 6 : 8;
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
    for (; n + 4 * width <= columns; n += 4 * width)
        strip<T, 4>(rows, depth, a, a_row, a_col, b + n, b_row, c + n, c_row, add);
    const int64_t left = (columns - n) / width;
    if (left == 3) strip<T, 3>(rows, depth, a, a_row, a_col, b + n, b_row, c + n, c_row, add);
    if (left == 2) strip<T, 2>(rows, depth, a, a_row, a_col, b + n, b_row, c + n, c_row, add);
    if (left == 1) strip<T, 1>(rows, depth, a, a_row, a_col, b + n, b_row, c + n, c_row, add);
}

// ---- transposing blocks of one register by one register ----

template <typename T> struct Lanes;
template <> struct Lanes<float> {
    typedef int32_t Mask __attribute__((vector_size(64)));
};
template <> struct Lanes<double> {
    typedef int64_t Mask __attribute__((vector_size(64)));
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
            swap_blocks<T, 4>(block);
            swap_blocks<T, 2>(block);
            swap_blocks<T, 1>(block);
#pragma GCC unroll 16
            for (int i = 0; i < width; ++i) *(Vec<T> *)(to + (c + i) * to_row + r) = block[i];
        }
}

// ---- the plan: distinct ids in visiting order ----

// `Int` holds any key of the table: small tables sort half as many bytes.
template <typename Int> struct Visit {
    Int key;
    int32_t position;
};

// Stable sort by key, of at most `bits` bits, in passes over equal digits; `other` is room of the same size.
template <typename Int> void radix_sort(std::vector<Visit<Int>> &visits, std::vector<Visit<Int>> &other, int bits) {
    const int passes = std::max(1, (bits + 11) / 12), digit = (bits + passes - 1) / passes;
    std::vector<int32_t> start((size_t)1 << digit);
    for (int pass = 0; pass < passes; ++pass) {
        const int shift = pass * digit;
        const Int mask = (Int)(start.size() - 1);
        std::fill(start.begin(), start.end(), 0);
        for (const Visit<Int> &v : visits) ++start[(v.key >> shift) & mask];
        int32_t before = 0;
        for (int32_t &s : start) {
            const int32_t count = s;
            s = before;
            before += count;
        }
        for (const Visit<Int> &v : visits) other[start[(v.key >> shift) & mask]++] = v;
        visits.swap(other);
    }
}

template <typename Int> void write_visits(const Table &t, const int64_t *indices, std::vector<Visit<Int>> &visits) {
    const Int p1 = (Int)t.p1, p2 = (Int)t.p2, p3 = (Int)t.p3;
    for (int64_t l = t.begin; l < t.end; ++l) {
        const Int id = (Int)indices[l];
        const Int prefix = id / p3, i1 = prefix / p2;
        visits[l - t.begin] = {(Int)(((prefix - i1 * p2) * p1 + i1) * p3 + (id - prefix * p3)), (int32_t)l};
    }
}

template <typename Int> void plan_with(Table &t, const int64_t *indices, int32_t *inverse, int bits) {
    const int64_t lookups = t.end - t.begin;
    static thread_local std::vector<Visit<Int>> visits, other;  // kept between calls: fresh pages cost more than sorting
    visits.resize(lookups);
    other.resize(lookups);
    write_visits<Int>(t, indices, visits);
    radix_sort<Int>(visits, other, bits);
    const Int p1 = (Int)t.p1, p3 = (Int)t.p3;
    int64_t distinct = 0, hot = 0;
    const int64_t *held = t.hot_keys, *held_end = t.hot_keys + t.hot_count;
    // Ids far apart in a large cache are found by halving, close ones by stepping.
    const bool stepping = t.hot_count < 8 * lookups;
    for (int64_t s = 0; s < lookups; ++s) {
        const Visit<Int> v = visits[s];
        if (s == 0 || v.key != visits[s - 1].key) {
            const Int prefix = v.key / p3, i2 = prefix / p1;
            const int64_t key = (int64_t)v.key;
            t.segment[distinct] = (int32_t)s;
            t.factor[distinct] = (int32_t)(prefix - i2 * p1);
            t.factor[lookups + distinct] = (int32_t)i2;
            t.factor[2 * lookups + distinct] = (int32_t)(v.key - prefix * p3);
            if (stepping)
                while (held < held_end && *held < key) ++held;
            else
                held = std::lower_bound(held, held_end, key);
            const bool found = held < held_end && *held == key;
            t.slot[distinct] = found ? t.hot_slots[held - t.hot_keys] : -1;
            hot += found;
            ++distinct;
        }
        t.order[s] = v.position;
        inverse[v.position] = (int32_t)(distinct - 1);
    }
    t.segment[distinct] = (int32_t)lookups;
    t.distinct = distinct;
    t.hot_distinct = hot;
}

void plan_table(Table &t, const int64_t *indices, int32_t *inverse) {
    const uint64_t keys = (uint64_t)t.p1 * t.p2 * t.p3;
    const int bits = keys > 1 ? 64 - __builtin_clzll(keys - 1) : 1;
    keys < (1ull << 32) ? plan_with<uint32_t>(t, indices, inverse, bits)
                        : plan_with<uint64_t>(t, indices, inverse, bits);
}

// ---- what forward and backward share ----

// Cuts [0, distinct) at changes of i2 into `chunks` parts of about equal work; bounds has chunks + 1 numbers.
std::vector<int64_t> cut_chunks(const Table &t, int chunks) {
    const int64_t lookups = t.end - t.begin;
    const int32_t *i1 = t.factor, *i2 = i1 + lookups;
    const int64_t prefix_cost = t.q1 * t.r1 * t.q2 * t.r2, row_cost = t.q1 * t.q2 * t.r2 * t.q3 + 4 * t.dim;
    std::vector<int64_t> starts, work;  // of each run of one i2
    int64_t total = 0;
    for (int64_t u = 0; u < t.distinct; ++u) {
        const bool new_second = u == 0 || i2[u] != i2[u - 1];
        if (new_second) {
            starts.push_back(u);
            work.push_back(total);
        }
        if (t.slot[u] >= 0) {
            total += 2 * t.dim;
            continue;
        }
        // A prefix whose first id is hot is counted late or not at all: this only balances work.
        total += row_cost + (new_second || i1[u] != i1[u - 1] ? prefix_cost : 0);
    }
    std::vector<int64_t> bounds(1, 0);
    for (int c = 1; c < chunks; ++c) {
        const int64_t target = total * c / chunks;
        const size_t at = std::lower_bound(work.begin(), work.end(), target) - work.begin();
        bounds.push_back(at < starts.size() ? starts[at] : t.distinct);
    }
    bounds.push_back(t.distinct);
    return bounds;
}

constexpr int64_t block_prefixes = 24;  // prefixes whose products are made at once: they stay in the second-level cache

// Prefixes of one i2 and the cold ids under each: what one block of work consists of.
template <typename T> struct Block {
    const Table &t;
    const int64_t q12, r1p, r2p, width2;  // width2: q2 r2p, a row of G2[i2] and of a product
    std::vector<int64_t> ids;             // cold distinct ids, in order
    std::vector<int64_t> first;           // prefix n has ids[first[n] .. first[n + 1])
    std::vector<int32_t> i1;
    std::vector<T> stacked, second, products;

    explicit Block(const Table &table)
        : t(table), q12(t.q1 * t.q2), r1p(padded<T>(t.r1)), r2p(padded<T>(t.r2)), width2(t.q2 * r2p),
          stacked(block_prefixes * t.q1 * r1p), second(t.r1 * width2), products(block_prefixes * t.q1 * width2) {}

    int64_t prefixes() const { return (int64_t)i1.size(); }

    // Takes G2[i2], rows padded to whole registers.
    void load_second(int64_t i2) {
        const T *g2 = (const T *)t.g2 + i2 * t.r1 * t.q2 * t.r2;
        for (int64_t row = 0; row < t.r1 * t.q2; ++row) std::copy_n(g2 + row * t.r2, t.r2, &second[row * r2p]);
    }

    // Gathers prefixes from distinct id u on, up to `end`; returns where the next block starts.
    int64_t gather(int64_t u, int64_t end) {
        const int32_t *first_factor = t.factor;
        ids.clear(), first.clear(), i1.clear();
        for (; u < end; ++u) {
            if (t.slot[u] >= 0) continue;
            if (i1.empty() || first_factor[u] != i1.back()) {
                if (prefixes() == block_prefixes) break;
                i1.push_back(first_factor[u]);
                first.push_back((int64_t)ids.size());
            }
            ids.push_back(u);
        }
        first.push_back((int64_t)ids.size());
        return u;
    }

    // products (prefixes, q1, q2, r2p) = stacked G1 slices times G2[i2].
    void multiply() {
        for (int64_t n = 0; n < prefixes(); ++n)
            for (int64_t q = 0; q < t.q1; ++q)
                std::copy_n((const T *)t.g1 + (i1[n] * t.q1 + q) * t.r1, t.r1, &stacked[(n * t.q1 + q) * r1p]);
        gemm<T>(prefixes() * t.q1, width2, t.r1, stacked.data(), r1p, 1, second.data(), width2, products.data(),
                width2, false);
    }
};

// Runs `work(block)` on every block of the distinct ids [begin, end), `after(i2)` after the blocks of one i2.
template <typename T, typename Work, typename After>
void for_blocks(Block<T> &block, int64_t begin, int64_t end, Work work, After after) {
    const Table &t = block.t;
    const int32_t *i2 = t.factor + (t.end - t.begin);
    while (begin < end) {
        int64_t run = begin;
        while (run < end && i2[run] == i2[begin]) ++run;
        const int32_t second = i2[begin];
        bool loaded = false;
        while (begin < run) {
            begin = block.gather(begin, run);
            if (!block.prefixes()) break;
            if (!loaded) block.load_second(second);
            work(second, !loaded);
            loaded = true;
        }
        begin = run;
        if (loaded) after(second);
    }
}

// ---- forward ----

// Whether `rows` holds a row as (q3, q1 q2), as the GEMM leaves it, instead of (q1 q2, q3): where that fills registers
// and nothing is cut off, it is turned back once a bag rather than once an id.
template <typename T> bool turned_rows(const Table &t) {
    return t.q1 * t.q2 % Simd<T>::width == 0 && t.dim == t.q1 * t.q2 * t.q3;
}

// to (columns, rows) = from (rows, columns), both contiguous.
template <typename T> void turn(const T *from, int64_t rows, int64_t columns, T *to) {
    for (int64_t c = 0; c < columns; ++c)
        for (int64_t r = 0; r < rows; ++r) to[c * rows + r] = from[r * columns + c];
}

template <typename T> void make_rows(const Table &t, int64_t begin, int64_t end) {
    T *rows = (T *)t.rows;
    const bool turned_back_later = turned_rows<T>(t);
    for (int64_t u = begin; u < end; ++u) {
        if (t.slot[u] < 0) continue;
        const T *hot = (const T *)t.hot_rows + t.slot[u] * t.dim;
        turned_back_later ? turn(hot, t.q1 * t.q2, t.q3, rows + u * t.dim)
                          : (void)std::copy_n(hot, t.dim, rows + u * t.dim);
    }
    Block<T> block(t);
    const int64_t lookups = t.end - t.begin, lanes = padded<T>(block.q12);
    const int32_t *i3 = t.factor + 2 * lookups;
    std::vector<T> turned(block.r2p * lanes), row(t.q3 * lanes);
    for_blocks(
        block, begin, end,
        [&](int64_t, bool) {
            block.multiply();
            for (int64_t n = 0; n < block.prefixes(); ++n) {
                // (q1 q2, r2) -> (r2, q1 q2), so that the q1 q2 numbers of a row fill registers.
                transpose<T>(block.q12, block.r2p, &block.products[n * t.q1 * block.width2], block.r2p, turned.data(),
                             lanes);
                for (int64_t at = block.first[n]; at < block.first[n + 1]; ++at) {
                    const int64_t u = block.ids[at];
                    const T *third = (const T *)t.g3 + i3[u] * t.r2 * t.q3;
                    T *out = rows + u * t.dim;
                    T *made = turned_back_later ? out : row.data();
                    gemm<T>(t.q3, lanes, t.r2, third, 1, t.q3, turned.data(), lanes, made, lanes, false);
                    if (turned_back_later) continue;
                    for (int64_t q = 0; q < block.q12; ++q)
                        for (int64_t k = 0, d = q * t.q3; k < t.q3 && d < t.dim; ++k, ++d) out[d] = row[k * lanes + q];
                }
            }
        },
        [](int64_t) {});
}

constexpr int64_t look_ahead = 12;  // look-ups, or ids, whose scattered rows are asked for ahead of their use

template <typename T> void prefetch(const T *row, int64_t numbers) {
    for (int64_t d = 0; d < numbers; d += Simd<T>::width) __builtin_prefetch(row + d);
}

// The weighted sum of the rows of look-ups [first, last); `sum` is room for one row.
template <typename T>
void pool(const Table &t, int64_t first, int64_t last, const int32_t *inverse, const T *weights, T *sum, T *out) {
    std::fill_n(sum, t.dim, T(0));
    for (int64_t l = first; l < last; ++l) {
        if (l + look_ahead < t.end) prefetch((const T *)t.rows + inverse[l + look_ahead] * t.dim, t.dim);
        const T *row = (const T *)t.rows + inverse[l] * t.dim;
        const T weight = weights ? weights[l] : T(1);
        for (int64_t d = 0; d < t.dim; ++d) sum[d] += weight * row[d];
    }
    turned_rows<T>(t) ? turn(sum, t.q3, t.q1 * t.q2, out) : (void)std::copy_n(sum, t.dim, out);
}

struct Task {
    int table, chunk;
    int64_t begin, end;
};

std::vector<Task> chunk_tasks(const Table *tables, int count, int chunks) {
    std::vector<Task> tasks;
    for (int k = 0; k < count; ++k) {
        const std::vector<int64_t> bounds = cut_chunks(tables[k], chunks);
        for (int c = 0; c < chunks; ++c) tasks.push_back({k, c, bounds[c], bounds[c + 1]});
    }
    return tasks;
}

template <typename T>
void forward(const Table *tables, int count, int64_t batch, const int64_t *offsets, const int32_t *inverse,
             const T *weights, T *out, int64_t out_row, int threads) {
    const std::vector<Task> tasks = chunk_tasks(tables, count, threads > 1 ? 2 * threads : 1);
    int64_t widest = 0;
    for (int k = 0; k < count; ++k) widest = std::max(widest, tables[k].dim);
#pragma omp parallel num_threads(threads)
    {
        std::vector<T> sum(widest);
#pragma omp for schedule(dynamic, 1)
        for (size_t k = 0; k < tasks.size(); ++k) make_rows<T>(tables[tasks[k].table], tasks[k].begin, tasks[k].end);
#pragma omp for schedule(dynamic, 256)
        for (int64_t b = 0; b < count * batch; ++b) {
            const Table &t = tables[b / batch];
            T *to = out + (b % batch) * out_row + t.column;
            pool<T>(t, offsets[b], offsets[b + 1], inverse, weights, sum.data(), to);
        }
    }
}

// ---- backward ----

// The gradient of one distinct id's row: its look-ups' bags, weighted.
template <typename T>
void row_gradient(const Table &t, int64_t u, const int32_t *bag_of, const T *weights, const T *grad, int64_t grad_row,
                  T *sum) {
    for (int64_t s = t.segment[u]; s < t.segment[u + 1]; ++s) {
        const int64_t l = t.order[s];
        const T *upstream = grad + bag_of[l] * grad_row + t.column;
        const T weight = weights ? weights[l] : T(1);
        if (s == t.segment[u])
            for (int64_t d = 0; d < t.dim; ++d) sum[d] = weight * upstream[d];
        else
            for (int64_t d = 0; d < t.dim; ++d) sum[d] += weight * upstream[d];
    }
}

// Core gradients of the distinct ids [begin, end). d1 (p1, q1, r1p) and d3 (p3, q3, r2p) belong to the chunk.
template <typename T>
void core_gradients(const Table &t, int64_t begin, int64_t end, const T *third, const int32_t *bag_of,
                    const T *weights, const T *grad, int64_t grad_row, T *d1, T *d3) {
    Block<T> block(t);
    const int64_t lookups = t.end - t.begin, q12 = block.q12, r1p = block.r1p, r2p = block.r2p;
    const int64_t width2 = block.width2, per_prefix = t.q1 * width2;
    const int32_t *i3 = t.factor + 2 * lookups;
    std::vector<T> upstream(q12 * t.q3), d_products(block_prefixes * per_prefix);
    std::vector<T> d_stacked(block_prefixes * t.q1 * r1p), turned(width2 * r1p), d_second(t.r1 * width2);
    for_blocks(
        block, begin, end,
        [&](int64_t, bool first_block) {
            if (first_block) transpose<T>(t.r1, width2, block.second.data(), width2, turned.data(), r1p);
            block.multiply();
            for (int64_t n = 0; n < block.prefixes(); ++n) {
                const T *product = &block.products[n * per_prefix];
                T *d_product = &d_products[n * per_prefix];
                for (int64_t at = block.first[n]; at < block.first[n + 1]; ++at) {
                    const int64_t u = block.ids[at];
                    if (u + look_ahead < t.distinct) {
                        const int64_t later = t.order[t.segment[u + look_ahead]];
                        prefetch(grad + bag_of[later] * grad_row + t.column, t.dim);
                    }
                    const T *d_row = upstream.data();
                    // A single unweighted look-up of whole rows: its bag's gradient serves where it lies.
                    if (!weights && t.segment[u + 1] - t.segment[u] == 1 && t.dim == q12 * t.q3)
                        d_row = grad + bag_of[t.order[t.segment[u]]] * grad_row + t.column;
                    else
                        row_gradient<T>(t, u, bag_of, weights, grad, grad_row, upstream.data());
                    // (q1 q2, q3) (q3, r2) and (q3, q1 q2) (q1 q2, r2).
                    gemm<T>(q12, r2p, t.q3, d_row, t.q3, 1, third + i3[u] * t.q3 * r2p, r2p, d_product, r2p,
                            at > block.first[n]);
                    gemm<T>(t.q3, r2p, q12, d_row, 1, t.q3, product, r2p, d3 + i3[u] * t.q3 * r2p, r2p, true);
                }
            }
            const int64_t stacked_rows = block.prefixes() * t.q1;
            gemm<T>(stacked_rows, r1p, width2, d_products.data(), width2, 1, turned.data(), r1p, d_stacked.data(), r1p,
                    false);
            gemm<T>(t.r1, width2, stacked_rows, block.stacked.data(), 1, r1p, d_products.data(), width2,
                    d_second.data(), width2, !first_block);
            for (int64_t n = 0; n < block.prefixes(); ++n) {
                T *to = d1 + block.i1[n] * t.q1 * r1p;
                const T *from = &d_stacked[n * t.q1 * r1p];
                for (int64_t k = 0; k < t.q1 * r1p; ++k) to[k] += from[k];
            }
        },
        [&](int64_t i2) {
            T *to = (T *)t.d2 + i2 * t.r1 * t.q2 * t.r2;
            for (int64_t row = 0; row < t.r1 * t.q2; ++row) std::copy_n(&d_second[row * r2p], t.r2, to + row * t.r2);
        });
}

// G3 with its rows turned, (p3, r2, q3) -> (p3, q3, r2p).
template <typename T> std::vector<T> turn_third(const Table &t) {
    const int64_t r2p = padded<T>(t.r2);
    std::vector<T> turned(t.p3 * t.q3 * r2p);
    for (int64_t p = 0; p < t.p3; ++p)
        for (int64_t r = 0; r < t.r2; ++r)
            for (int64_t q = 0; q < t.q3; ++q)
                turned[(p * t.q3 + q) * r2p + r] = ((const T *)t.g3)[(p * t.r2 + r) * t.q3 + q];
    return turned;
}

// Zeroes the gradient of the second core's slices that no cold id uses; all others are written whole.
template <typename T> void clear_unused_second(const Table &t) {
    const int32_t *i2 = t.factor + (t.end - t.begin);
    std::vector<char> used(t.p2, 0);
    for (int64_t u = 0; u < t.distinct; ++u)
        if (t.slot[u] < 0) used[i2[u]] = 1;
    const int64_t size = t.r1 * t.q2 * t.r2;
    for (int64_t p = 0; p < t.p2; ++p)
        if (!used[p]) std::fill_n((T *)t.d2 + p * size, size, T(0));
}

// Hot ids of [begin, end); `place` is how many hot ids lie before.
template <typename T>
void hot_gradients(const Table &t, int64_t begin, int64_t end, int64_t place, const int32_t *bag_of, const T *weights,
                   const T *grad, int64_t grad_row) {
    for (int64_t u = begin; u < end; ++u)
        if (t.slot[u] >= 0) {
            t.hot_used[place] = t.slot[u];
            row_gradient<T>(t, u, bag_of, weights, grad, grad_row, (T *)t.hot_grad + place * t.dim);
            ++place;
        }
}

// Adds the chunks' gradients of core slice i, in order; each chunk holds d1 then d3, rows padded.
template <typename T>
void reduce_first(const Table &t, const std::vector<std::vector<T>> &parts, size_t from, int chunks, int64_t i) {
    const int64_t r1p = padded<T>(t.r1);
    for (int64_t q = 0; q < t.q1; ++q)
        for (int64_t r = 0; r < t.r1; ++r) {
            T sum = 0;
            for (int c = 0; c < chunks; ++c) sum += parts[from + c][(i * t.q1 + q) * r1p + r];
            ((T *)t.d1)[(i * t.q1 + q) * t.r1 + r] = sum;
        }
}

template <typename T>
void reduce_third(const Table &t, const std::vector<std::vector<T>> &parts, size_t from, int chunks, int64_t i) {
    const int64_t r2p = padded<T>(t.r2), skip = t.p1 * t.q1 * padded<T>(t.r1);
    for (int64_t q = 0; q < t.q3; ++q)
        for (int64_t r = 0; r < t.r2; ++r) {
            T sum = 0;
            for (int c = 0; c < chunks; ++c) sum += parts[from + c][skip + (i * t.q3 + q) * r2p + r];
            ((T *)t.d3)[(i * t.r2 + r) * t.q3 + q] = sum;
        }
}

template <typename T>
void backward(const Table *tables, int count, const int32_t *bag_of, const T *weights, const T *grad, int64_t grad_row,
              int threads) {
    const int chunks = threads > 1 ? 2 * threads : 1;
    const std::vector<Task> tasks = chunk_tasks(tables, count, chunks);
    std::vector<std::vector<T>> parts(tasks.size()), third(count);
    std::vector<int64_t> hot_before(tasks.size(), 0);
    for (size_t k = 0; k + 1 < tasks.size(); ++k) {
        if (tasks[k + 1].chunk == 0) continue;
        const int32_t *slot = tables[tasks[k].table].slot;
        const int64_t hot = std::count_if(slot + tasks[k].begin, slot + tasks[k].end, [](int32_t s) { return s >= 0; });
        hot_before[k + 1] = hot_before[k] + hot;
    }
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic, 1)
        for (int k = 0; k < count; ++k) {
            third[k] = turn_third<T>(tables[k]);
            clear_unused_second<T>(tables[k]);
        }
#pragma omp for schedule(dynamic, 1)
        for (size_t k = 0; k < tasks.size(); ++k) {
            const Task &task = tasks[k];
            const Table &t = tables[task.table];
            const int64_t first_size = t.p1 * t.q1 * padded<T>(t.r1);
            parts[k].assign(first_size + t.p3 * t.q3 * padded<T>(t.r2), T(0));
            core_gradients<T>(t, task.begin, task.end, third[task.table].data(), bag_of, weights, grad, grad_row,
                              parts[k].data(), parts[k].data() + first_size);
            hot_gradients<T>(t, task.begin, task.end, hot_before[k], bag_of, weights, grad, grad_row);
        }
        for (int k = 0; k < count; ++k) {
            const Table &t = tables[k];
#pragma omp for schedule(static) nowait
            for (int64_t i = 0; i < t.p1; ++i) reduce_first<T>(t, parts, (size_t)k * chunks, chunks, i);
#pragma omp for schedule(static) nowait
            for (int64_t i = 0; i < t.p3; ++i) reduce_third<T>(t, parts, (size_t)k * chunks, chunks, i);
        }
    }
}

// d_weights[l] = row of look-up l times the gradient of its bag.
template <typename T>
void weight_gradients(const Table *tables, int count, const int32_t *inverse, const int32_t *bag_of, const T *grad,
                      int64_t grad_row, T *d_weights, int threads) {
    for (int k = 0; k < count; ++k) {
        const Table &t = tables[k];
        const bool turned = turned_rows<T>(t);
        const int64_t q12 = t.q1 * t.q2;
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t l = t.begin; l < t.end; ++l) {
            const T *row = (const T *)t.rows + inverse[l] * t.dim, *upstream = grad + bag_of[l] * grad_row + t.column;
            T sum = 0;
            for (int64_t d = 0; d < t.dim; ++d) sum += row[turned ? d % t.q3 * q12 + d / t.q3 : d] * upstream[d];
            d_weights[l] = sum;
        }
    }
}

}  // namespace

extern "C" {

// Fills each table's plan, inverse (look-ups,) with places among the table's distinct ids, bag_of (look-ups,) with rows
// of the output.
void tt_plan(Table *tables, int count, int64_t batch, const int64_t *indices, const int64_t *offsets, int32_t *inverse,
             int32_t *bag_of, int threads) {
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic, 1) nowait
        for (int k = 0; k < count; ++k) plan_table(tables[k], indices, inverse);
#pragma omp for schedule(static)
        for (int64_t b = 0; b < count * batch; ++b)
            std::fill(bag_of + offsets[b], bag_of + offsets[b + 1], (int32_t)(b % batch));
    }
}

#define SHARDGYM_TT(T, NAME)                                                                                           \
    void tt_forward_##NAME(const Table *tables, int count, int64_t batch, const int64_t *offsets,                      \
                           const int32_t *inverse, const T *weights, T *out, int64_t out_row, int threads) {           \
        forward<T>(tables, count, batch, offsets, inverse, weights, out, out_row, threads);                            \
    }                                                                                                                  \
    void tt_backward_##NAME(const Table *tables, int count, const int32_t *bag_of, const T *weights, const T *grad,    \
                            int64_t grad_row, int threads) {                                                           \
        backward<T>(tables, count, bag_of, weights, grad, grad_row, threads);                                          \
    }                                                                                                                  \
    void tt_weight_gradients_##NAME(const Table *tables, int count, const int32_t *inverse, const int32_t *bag_of,     \
                                    const T *grad, int64_t grad_row, T *d_weights, int threads) {                      \
        weight_gradients<T>(tables, count, inverse, bag_of, grad, grad_row, d_weights, threads);                       \
    }

SHARDGYM_TT(float, float32)
SHARDGYM_TT(double, float64)

}  // extern "C"
