// The heads of an ensemble of cost networks on many devices at once; `heads.py` beside it says the same in numpy.
//
// Every operation is an IEEE float32 operation in a fixed order, per device: no fused multiply-add, no reordering, no
// library function. So a device costs the same to the last bit whatever stands beside it, on every processor, and in
// the numpy reference. Vectors run over devices.

#pragma GCC optimize("fp-contract=off")
#ifdef __clang__
#pragma clang fp contract(off)
#endif

#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int LANES = 8;
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));

constexpr int TERMS = 4;  // sums that are carried at once, to hide the latency of an addition

inline Floats all(float x) { return Floats{} + x; }
inline Ints bits(Floats x) { return (Ints)x; }
inline Floats floats(Ints x) { return (Floats)x; }
inline Floats pick(Ints where, Floats yes, Floats no) { return floats((where & bits(yes)) | (~where & bits(no))); }
inline Floats least(Floats x, float most) { return pick(x < most, x, all(most)); }
inline Floats most(Floats x, float least) { return pick(x > least, x, all(least)); }

// 2^k e^r with |r| <= ln 2 / 2, by Taylor's series; x is held within [-87, 88].
inline Floats exponential(Floats x) {
    constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    x = least(most(x, -87.0f), 88.0f);
    Floats shifted = x * 1.44269504f + ROUND;
    Floats k = shifted - ROUND;
    Floats r = x - k * 0.693145752f;
    r = r - k * 1.42860677e-6f;
    Floats sum = r * (1.0f / 5040) + (1.0f / 720);
    sum = sum * r + (1.0f / 120);
    sum = sum * r + (1.0f / 24);
    sum = sum * r + (1.0f / 6);
    sum = sum * r + 0.5f;
    sum = sum * r + 1.0f;
    sum = sum * r + 1.0f;
    Ints power = (bits(shifted) - bits(all(ROUND)) + 127) << 23;
    return sum * floats(power);
}

// log(1 + x) for x >= 0: the logarithm of the rounded sum, times x over what was really added.
inline Floats log_plus_one(Floats x) {
    Floats u = x + 1.0f;
    Floats added = u - 1.0f;
    Ints exponent = (bits(u) >> 23) - 127;
    Floats m = floats((bits(u) & 0x7fffff) | 0x3f800000);
    Ints high = m > 1.41421356f;
    m = pick(high, m * 0.5f, m);
    exponent = exponent - high;  // `high` is -1 where true
    Floats e = __builtin_convertvector(exponent, Floats);
    Floats t = (m - 1.0f) / (m + 1.0f);
    Floats square = t * t;
    Floats sum = square * (1.0f / 11) + (1.0f / 9);
    sum = sum * square + (1.0f / 7);
    sum = sum * square + (1.0f / 5);
    sum = sum * square + (1.0f / 3);
    sum = sum * square + 1.0f;
    Floats log = e * 0.693147182f + (t + t) * sum;
    return pick(added > 0.0f, log * (x / pick(added > 0.0f, added, all(1.0f))), x);
}

inline Floats hyperbolic_tangent(Floats x) {
    Floats e = exponential(x + x);
    return 1.0f - 2.0f / (e + 1.0f);
}

// One device, its vectors running over the hidden units; the same operations in the same order as below.
void one_device(
    const float* states, int members, int width, int hidden, int phases, const float* in_weight, const float* in_bias,
    const float* out_weight, const float* out_bias, float* ms, std::vector<Floats>& scratch) {
    const int outs = 2 * phases;
    float* seen = reinterpret_cast<float*>(scratch.data());  // hidden units, then logarithms
    bool used = false;
    float sums[8] = {};
    for (int m = 0; m < members; ++m) {
        const float* x = states + m * width;
        for (int s = 0; s < width; ++s) used |= x[s] > 0.0f;
        for (int s = 0; s < width; s += LANES) {
            Floats value;
            std::memcpy(&value, x + s, sizeof value);
            value = log_plus_one(value);
            std::memcpy(seen + hidden + s, &value, sizeof value);
        }
        const float* weight = in_weight + int64_t(m) * width * hidden;
        for (int h = 0; h < hidden; h += LANES) {
            Floats sum;
            std::memcpy(&sum, in_bias + m * hidden + h, sizeof sum);
            for (int s = 0; s < width; ++s) {
                Floats w;
                std::memcpy(&w, weight + s * hidden + h, sizeof w);
                sum = sum + all(seen[hidden + s]) * w;
            }
            sum = hyperbolic_tangent(sum);
            std::memcpy(seen + h, &sum, sizeof sum);
        }
        weight = out_weight + int64_t(m) * (hidden + width) * outs;
        float out[16];
        for (int o = 0; o < outs; ++o) out[o] = out_bias[m * outs + o];
        for (int s = 0; s < hidden + width; ++s)
            for (int o = 0; o < outs; ++o) out[o] = out[o] + seen[s] * weight[s * outs + o];
        Floats ratio = {};
        for (int o = 0; o < outs; ++o) ratio[o] = out[o];
        ratio = exponential(least(ratio, 12.0f));
        for (int p = 0; p < phases; ++p) sums[p] = sums[p] + (x[p] * ratio[p] + ratio[phases + p]);
    }
    for (int p = 0; p < phases; ++p) ms[p] = used ? sums[p] / float(members) : 0.0f;
}

}  // namespace

// Costs of `count` devices.
//
// states (count, members * width), in_weight (members, width, hidden), in_bias (members, hidden),
// out_weight (members, hidden + width, 2 * phases), out_bias (members, 2 * phases), ms (count, phases).
extern "C" void cost_heads(
    const float* states, int64_t count, int members, int width, int hidden, int phases, const float* in_weight,
    const float* in_bias, const float* out_weight, const float* out_bias, float* ms) {
    const int row = members * width, outs = 2 * phases;
    std::vector<Floats> x(width), seen(hidden + width), sums(phases);
    const bool whole = width % LANES == 0 && hidden % LANES == 0 && outs <= LANES;
    if (count <= 3 && whole) {
        for (int64_t k = 0; k < count; ++k)
            one_device(
                states + k * row, members, width, hidden, phases, in_weight, in_bias, out_weight, out_bias,
                ms + k * phases, seen);
        return;
    }
    for (int64_t first = 0; first < count; first += LANES) {
        const int lanes = count - first < LANES ? int(count - first) : LANES;
        Ints used = {};
        for (auto& sum : sums) sum = Floats{};
        for (int m = 0; m < members; ++m) {
            for (int s = 0; s < width; ++s) {
                Floats value = {};
                for (int r = 0; r < lanes; ++r) value[r] = states[(first + r) * row + m * width + s];
                x[s] = value;
                used |= value > 0.0f;
                seen[hidden + s] = log_plus_one(value);
            }
            const float* weight = in_weight + int64_t(m) * width * hidden;
            for (int h = 0; h < hidden; h += TERMS) {
                const int terms = hidden - h < TERMS ? hidden - h : TERMS;
                Floats sum[TERMS];
                for (int j = 0; j < terms; ++j) sum[j] = all(in_bias[m * hidden + h + j]);
                if (terms == TERMS) {
                    for (int s = 0; s < width; ++s)
                        for (int j = 0; j < TERMS; ++j) sum[j] = sum[j] + seen[hidden + s] * weight[s * hidden + h + j];
                } else {
                    for (int s = 0; s < width; ++s)
                        for (int j = 0; j < terms; ++j) sum[j] = sum[j] + seen[hidden + s] * weight[s * hidden + h + j];
                }
                for (int j = 0; j < terms; ++j) seen[h + j] = hyperbolic_tangent(sum[j]);
            }
            weight = out_weight + int64_t(m) * (hidden + width) * outs;
            Floats out[16];
            for (int o = 0; o < outs; ++o) out[o] = all(out_bias[m * outs + o]);
            for (int s = 0; s < hidden + width; ++s)
                for (int o = 0; o < outs; ++o) out[o] = out[o] + seen[s] * weight[s * outs + o];
            for (int p = 0; p < phases; ++p) {
                Floats stretch = exponential(least(out[p], 12.0f));
                Floats extra = exponential(least(out[phases + p], 12.0f));
                sums[p] = sums[p] + (x[p] * stretch + extra);
            }
        }
        for (int p = 0; p < phases; ++p) {
            Floats cost = pick(used, sums[p] / float(members), Floats{});
            for (int r = 0; r < lanes; ++r) ms[(first + r) * phases + p] = cost[r];
        }
    }
}
