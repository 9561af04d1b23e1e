// What forward and backward share: chunks of work, and blocks of prefixes whose products are made at once.

#pragma once

#include <algorithm>
#include <vector>

#include "tt_plan.h"
#include "tt_simd.h"

namespace {

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

}  // namespace
