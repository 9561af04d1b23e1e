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
#include <cstring>
#include <vector>

#include <omp.h>

#include "tt_blocks.h"

namespace {

// ---- forward ----

// How a row (q1 q2, q3) comes out of its last product, whichever side fills registers.
enum class RowForm {
    straight,  // (q1 q2, q3), as it is kept: q3 numbers fill registers
    turned,    // (q3, q1 q2), turned back once per bag rather than once per id
    copied,    // neither: made with padding and copied
};

template <typename T> RowForm row_form(const Table &t) {
    constexpr int64_t width = Simd<T>::width;
    if (t.dim != t.q1 * t.q2 * t.q3) return RowForm::copied;
    if (t.q3 % width == 0) return RowForm::straight;
    return t.q1 * t.q2 % width == 0 ? RowForm::turned : RowForm::copied;
}

// to (columns, rows) = from (rows, columns), both contiguous.
template <typename T> void turn(const T *from, int64_t rows, int64_t columns, T *to) {
    for (int64_t c = 0; c < columns; ++c)
        for (int64_t r = 0; r < rows; ++r) to[c * rows + r] = from[r * columns + c];
}

constexpr int64_t look_ahead = 12;  // look-ups, or ids, whose scattered rows are asked for ahead of their use
constexpr int64_t slices_ahead = 2;  // ids whose slices of the third core are asked for ahead of their use

template <typename T> void prefetch(const T *row, int64_t numbers) {
    for (int64_t d = 0; d < numbers; d += 64 / sizeof(T)) __builtin_prefetch(row + d);
}

// Where the rows of a chunk of work go: kept one by one, or added to the sums of their bags.
template <typename T> struct Destination {
    const Table &t;
    const int32_t *bag_of;
    const T *weights;
    T *sums;            // (batch, dim), or null: rows are kept
    std::vector<T> row;

    // Room for the row of distinct id u; `done(u)` follows once it is made.
    T *place(int64_t u) { return sums ? row.data() : (T *)t.rows + u * t.dim; }

    void done(int64_t u) {
        if (!sums) return;
        for (int64_t s = t.segment[u]; s < t.segment[u + 1]; ++s) {
            const int64_t l = t.order[s];
            T *sum = sums + bag_of[l] * t.dim;
            const T weight = weights ? weights[l] : T(1);
            for (int64_t d = 0; d < t.dim; ++d) sum[d] += weight * row[d];
        }
    }
};

// Rows of the cold ids of one prefix, whose product is (q1 q2, r2p); `turned` (r2p, lanes) and `row` are room.
template <typename T>
void make_prefix_rows(const Block<T> &block, int64_t n, RowForm form, Destination<T> &to, T *turned, T *row) {
    const Table &t = block.t;
    const int64_t q12 = block.q12, lanes = padded<T>(q12), per_third = t.r2 * t.q3;
    const int32_t *i3 = t.factor + 2 * (t.end - t.begin);
    const T *product = &block.products[n * t.q1 * block.width2];
    // (q1 q2, r2) -> (r2, q1 q2), so that the q1 q2 numbers of a row fill registers.
    if (form != RowForm::straight) transpose<T>(q12, block.r2p, product, block.r2p, turned, lanes);
    for (int64_t at = block.first[n]; at < block.first[n + 1]; ++at) {
        const int64_t u = block.ids[at];
        if (u + slices_ahead < t.distinct) prefetch((const T *)t.g3 + i3[u + slices_ahead] * per_third, per_third);
        const T *third = (const T *)t.g3 + i3[u] * per_third;
        T *out = to.place(u);
        if (form == RowForm::straight) {
            few_rows<T>(q12, t.q3, t.r2, product, block.r2p, third, t.q3, out, t.q3, false);
        } else {
            T *made = form == RowForm::turned ? out : row;
            gemm<T>(t.q3, lanes, t.r2, third, 1, t.q3, turned, lanes, made, lanes, false);
            if (form == RowForm::copied)
                for (int64_t q = 0; q < q12; ++q)
                    for (int64_t k = 0, d = q * t.q3; k < t.q3 && d < t.dim; ++k, ++d) out[d] = row[k * lanes + q];
        }
        to.done(u);
    }
}

template <typename T> void make_rows(Destination<T> to, int64_t begin, int64_t end) {
    const Table &t = to.t;
    const RowForm form = row_form<T>(t);
    to.row.resize(t.dim);
    for (int64_t u = begin; u < end; ++u) {
        if (t.slot[u] < 0) continue;
        const T *hot = (const T *)t.hot_rows + t.slot[u] * t.dim;
        T *out = to.place(u);
        form == RowForm::turned ? turn(hot, t.q1 * t.q2, t.q3, out) : (void)std::copy_n(hot, t.dim, out);
        to.done(u);
    }
    Block<T> block(t);
    const int64_t lanes = padded<T>(block.q12);
    std::vector<T> turned(block.r2p * lanes), row(t.q3 * lanes);
    for_blocks(
        block, begin, end,
        [&](int64_t, bool) {
            block.multiply();
            for (int64_t n = 0; n < block.prefixes(); ++n)
                make_prefix_rows(block, n, form, to, turned.data(), row.data());
        },
        [](int64_t) {});
}

// The weighted sum of the kept rows of look-ups [first, last); `sum` is room for one row.
template <typename T>
void pool_rows(const Table &t, int64_t first, int64_t last, const int32_t *inverse, const T *weights, T *sum) {
    std::fill_n(sum, t.dim, T(0));
    for (int64_t l = first; l < last; ++l) {
        if (l + look_ahead < t.end) prefetch((const T *)t.rows + inverse[l + look_ahead] * t.dim, t.dim);
        const T *row = (const T *)t.rows + inverse[l] * t.dim;
        const T weight = weights ? weights[l] : T(1);
        for (int64_t d = 0; d < t.dim; ++d) sum[d] += weight * row[d];
    }
}

// The sum of the chunks' sums of bag b, in order; `sum` is room for one row.
template <typename T> void pool_sums(const Table &t, int64_t b, int64_t batch, int chunks, T *sum) {
    const T *part = (const T *)t.rows + b * t.dim;
    std::copy_n(part, t.dim, sum);
    for (int c = 1; c < chunks; ++c) {
        part += batch * t.dim;
        for (int64_t d = 0; d < t.dim; ++d) sum[d] += part[d];
    }
}

struct Task {
    int table, chunk;
    int64_t begin, end;
};

// More chunks than threads, so that no thread waits long for the last; tt_cpu.py makes room for as many.
int chunks_for(int threads) { return threads > 1 ? 2 * threads : 1; }

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
             const int32_t *bag_of, const T *weights, T *out, int64_t out_row, int threads) {
    const int chunks = chunks_for(threads);
    const std::vector<Task> tasks = chunk_tasks(tables, count, chunks);
    int64_t widest = 0;
    for (int k = 0; k < count; ++k) widest = std::max(widest, tables[k].dim);
#pragma omp parallel num_threads(threads)
    {
        std::vector<T> sum(widest);
#pragma omp for schedule(dynamic, 1)
        for (size_t k = 0; k < tasks.size(); ++k) {
            const Table &t = tables[tasks[k].table];
            T *sums = t.summed ? (T *)t.rows + tasks[k].chunk * batch * t.dim : nullptr;
            if (sums) std::fill_n(sums, batch * t.dim, T(0));
            make_rows<T>({t, bag_of, weights, sums, {}}, tasks[k].begin, tasks[k].end);
        }
#pragma omp for schedule(static)
        for (int64_t b = 0; b < count * batch; ++b) {
            const Table &t = tables[b / batch];
            t.summed ? pool_sums<T>(t, b % batch, batch, chunks, sum.data())
                     : pool_rows<T>(t, offsets[b], offsets[b + 1], inverse, weights, sum.data());
            T *to = out + (b % batch) * out_row + t.column;
            row_form<T>(t) == RowForm::turned ? turn(sum.data(), t.q3, t.q1 * t.q2, to)
                                              : (void)std::copy_n(sum.data(), t.dim, to);
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
                    if (u + slices_ahead < t.distinct) {
                        const int64_t slice = i3[u + slices_ahead] * t.q3 * r2p;
                        prefetch(third + slice, t.q3 * r2p);
                        prefetch(d3 + slice, t.q3 * r2p);
                    }
                    const T *d_row = upstream.data();
                    // A single unweighted look-up of whole rows: its bag's gradient serves where it lies.
                    if (!weights && t.segment[u + 1] - t.segment[u] == 1 && t.dim == q12 * t.q3)
                        d_row = grad + bag_of[t.order[t.segment[u]]] * grad_row + t.column;
                    else
                        row_gradient<T>(t, u, bag_of, weights, grad, grad_row, upstream.data());
                    // (q1 q2, q3) (q3, r2) and (q3, q1 q2) (q1 q2, r2).
                    few_rows<T>(q12, r2p, t.q3, d_row, t.q3, third + i3[u] * t.q3 * r2p, r2p, d_product, r2p,
                                at > block.first[n]);
                    add_outer<T>(t.q3, r2p, q12, d_row, t.q3, product, r2p, d3 + i3[u] * t.q3 * r2p, r2p);
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
    const int chunks = chunks_for(threads);
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
        const bool turned = row_form<T>(t) == RowForm::turned;
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
                           const int32_t *inverse, const int32_t *bag_of, const T *weights, T *out, int64_t out_row,   \
                           int threads) {                                                                              \
        forward<T>(tables, count, batch, offsets, inverse, bag_of, weights, out, out_row, threads);                    \
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
