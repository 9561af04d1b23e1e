// A table as C sees it, and the plan of a batch: its distinct ids in visiting order.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

using std::int32_t;
using std::int64_t;

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
    // Used by forward: one row per distinct id, (distinct, dim), or where `summed` is not 0 one sum per bag and chunk of
    // work, (chunks, batch, dim); each as `row_form` says.
    void *rows;
    int64_t summed;
    // Written by backward; hot_grad (hot_distinct, dim) goes with hot_used (hot_distinct,).
    void *d1, *d2, *d3;
    void *hot_grad;
    int64_t *hot_used;
};

}  // extern "C"

namespace {

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

}  // namespace
