/* Arithmetic over many elements at once: what takes numpy several passes through memory, in one.

   Every function has the bits of the numpy code beside which it stands. So: no contraction into
   fused multiply-adds, no reordered sums (`building.py` says so to the compiler), and where an order
   matters it is written out. Callers have checked shapes, types and strides; nothing here allocates.

   P rows, n elements of each, K elements of a block or tile
*/

#include <float.h>
#include <stddef.h>
#include <stdint.h>

#if FLT_EVAL_METHOD != 0 || defined(__FAST_MATH__)
#error "each operation has to be rounded to its own type"
#endif

#ifdef BARNRAISE_CLONES
#define KERNEL __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KERNEL
#endif

/* Before a loop that writes to where it reads, or elsewhere: no element hangs on another. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define INDEPENDENT _Pragma("GCC ivdep")
#else
#define INDEPENDENT
#endif

/* So many elements of each row are worked on at once. */
#define LANES 64

/* So many of all rows, as float64: 16 rows of them are in a core's first cache. */
#define TILE 256

/* So many elements before they are wanted. */
#define AHEAD 256

/* Strips of a vector whose squares are added up at once, and how many elements of each. */
#define STRIPS 16
#define STRIP_LANES 16

#define ROWS_MAX 64
#define ALIGNED __attribute__((aligned(64)))

/* Of a function whose products and sums are integers below 2^53: exact, fused or not. */
#if defined(__GNUC__) && !defined(__clang__)
#define EXACT __attribute__((optimize("fp-contract=fast")))
#else
#define EXACT
#endif

/* 1.5 * 2^23: added and taken away again, a number below 2^22 is rounded to the nearest integer,
   ties to even, and in between its lowest bits are that integer in two's complement. */
static const float ROUNDING = 12582912.0f;

static inline float rounded(float value) { return (value + ROUNDING) - ROUNDING; }

static const uint32_t INFINITE = 0x7f800000u;

union number {
    float value;
    uint32_t bits;
};

static inline uint32_t bits_of(float value)
{
    union number number = {.value = value};
    return number.bits;
}

static inline float value_of(int32_t bits)
{
    union number number = {.bits = (uint32_t)bits};
    return number.value;
}

static inline uint32_t magnitude_of(float value) { return bits_of(value) & 0x7fffffffu; }

/* Integers that order like the numbers; the same turns them back. */
static inline int32_t key_of(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

static inline int32_t lower(int32_t a, int32_t b) { return a < b ? a : b; }

static inline int32_t higher(int32_t a, int32_t b) { return a > b ? a : b; }

#ifdef __GNUC__
#define FETCH(place) __builtin_prefetch(place)
#else
#define FETCH(place)
#endif

/* Of many rows only a few elements each are read at a time, which no processor foresees. Behind the
   end nothing is read: it is a hint. */
static inline void fetch_ahead(const float *x, size_t ahead)
{
    for (size_t k = 0; k < LANES; k += 16)
        FETCH(x + k + ahead);
}

const char *barnraise_source(void) { return BARNRAISE_SOURCE; }

/* The bits of the largest magnitude of each row, which order like the numbers: from INFINITE on one
   of them is no finite number. */
KERNEL void barnraise_peaks(const float *x, size_t stride, size_t rows, size_t n, uint32_t *peaks)
{
    for (size_t row = 0; row < rows; row++) {
        const float *x_row = x + row * stride;
        uint32_t most = 0;
        for (size_t i = 0; i < n; i++) {
            uint32_t magnitude = magnitude_of(x_row[i]);
            most = magnitude > most ? magnitude : most;
        }
        peaks[row] = most;
    }
}

/* out = the sum of factor times row, first row first. */
KERNEL void barnraise_weighted_sum(const float *const *rows, const float *factors, size_t num_rows,
                                   float *restrict out, size_t n)
{
    size_t at = 0;
    for (; at + LANES <= n; at += LANES) {
        float total[LANES] ALIGNED;
        for (size_t row = 0; row < num_rows; row++) {
            const float *x = rows[row] + at;
            float factor = factors[row];
            fetch_ahead(x, AHEAD);
            if (row == 0)
                for (size_t k = 0; k < LANES; k++)
                    total[k] = factor * x[k];
            else
                for (size_t k = 0; k < LANES; k++)
                    total[k] += factor * x[k];
        }
        for (size_t k = 0; k < LANES; k++)
            out[at + k] = total[k];
    }
    for (; at < n; at++) {
        float total = factors[0] * rows[0][at];
        for (size_t row = 1; row < num_rows; row++)
            total += factors[row] * rows[row][at];
        out[at] = total;
    }
}

/* out = the sum of rows, first row first, times a factor. */
KERNEL void barnraise_scaled_sum(const float *const *rows, size_t num_rows, float factor,
                                 float *restrict out, size_t n)
{
    size_t at = 0;
    for (; at + LANES <= n; at += LANES) {
        float total[LANES] ALIGNED;
        for (size_t row = 0; row < num_rows; row++) {
            const float *x = rows[row] + at;
            fetch_ahead(x, AHEAD);
            if (row == 0)
                for (size_t k = 0; k < LANES; k++)
                    total[k] = x[k] + 0.0f;
            else
                for (size_t k = 0; k < LANES; k++)
                    total[k] += x[k];
        }
        for (size_t k = 0; k < LANES; k++)
            out[at + k] = total[k] * factor;
    }
    for (; at < n; at++) {
        float total = rows[0][at] + 0.0f;
        for (size_t row = 1; row < num_rows; row++)
            total += rows[row][at];
        out[at] = total * factor;
    }
}

struct network {
    size_t rows, num_pairs, num_wires;
    const int32_t *pairs, *wires;
};

/* A few coordinates through a network; whether all of them are finite. To `out` go the wires that
   are asked for, or with `is_mean` their mean, added in that order. */
static inline __attribute__((always_inline)) int sort_lanes(
    const struct network *network, const float *x, size_t stride, float *out, size_t out_stride,
    size_t lanes, int is_mean)
{
    int32_t tile[ROWS_MAX][LANES] ALIGNED;
    uint32_t most[LANES] ALIGNED;
    for (size_t k = 0; k < lanes; k++)
        most[k] = 0;
    for (size_t row = 0; row < network->rows; row++) {
        const float *from = x + row * stride;
        fetch_ahead(from, AHEAD);
        for (size_t k = 0; k < lanes; k++) {
            uint32_t magnitude = magnitude_of(from[k]);
            most[k] = magnitude > most[k] ? magnitude : most[k];
            tile[row][k] = key_of((int32_t)bits_of(from[k]));
        }
    }
    uint32_t largest = 0;
    for (size_t k = 0; k < lanes; k++)
        largest = most[k] > largest ? most[k] : largest;
    if (largest >= INFINITE)
        return 0;
    for (size_t pair = 0; pair < network->num_pairs; pair++) {
        int32_t *restrict low = tile[network->pairs[2 * pair]];
        int32_t *restrict high = tile[network->pairs[2 * pair + 1]];
        for (size_t k = 0; k < lanes; k++) {
            int32_t a = low[k], b = high[k];
            low[k] = lower(a, b);
            high[k] = higher(a, b);
        }
    }
    if (is_mean) {
        float total[LANES] ALIGNED, count = (float)network->num_wires;
        for (size_t k = 0; k < lanes; k++)
            total[k] = 0.0f;
        for (size_t wire = 0; wire < network->num_wires; wire++) {
            /* By themselves, or the compiler takes one number at a time. */
            float values[LANES] ALIGNED;
            for (size_t k = 0; k < lanes; k++)
                values[k] = value_of(key_of(tile[network->wires[wire]][k]));
            for (size_t k = 0; k < lanes; k++)
                total[k] += values[k];
        }
        for (size_t k = 0; k < lanes; k++)
            out[k] = total[k] / count;
        return 1;
    }
    for (size_t wire = 0; wire < network->num_wires; wire++) {
        float *to = out + wire * out_stride;
        for (size_t k = 0; k < lanes; k++)
            to[k] = value_of(key_of(tile[network->wires[wire]][k]));
    }
    return 1;
}

/* The rows through a network of comparators, which are pairs of wires; `out` is of the wires that
   are asked for. Zero if some element is not finite: then what was written is of no use. */
KERNEL int barnraise_sort(const float *x, size_t stride, size_t rows, size_t n,
                          const int32_t *pairs, size_t num_pairs, const int32_t *wires,
                          size_t num_wires, float *out, size_t out_stride)
{
    const struct network network = {rows, num_pairs, num_wires, pairs, wires};
    size_t at = 0;
    for (; at + LANES <= n; at += LANES)
        if (!sort_lanes(&network, x + at, stride, out + at, out_stride, LANES, 0))
            return 0;
    return at == n || sort_lanes(&network, x + at, stride, out + at, out_stride, n - at, 0);
}

/* The same, and the mean of those wires. */
KERNEL int barnraise_sort_mean(const float *x, size_t stride, size_t rows, size_t n,
                               const int32_t *pairs, size_t num_pairs, const int32_t *wires,
                               size_t num_wires, float *out)
{
    const struct network network = {rows, num_pairs, num_wires, pairs, wires};
    size_t at = 0;
    for (; at + LANES <= n; at += LANES)
        if (!sort_lanes(&network, x + at, stride, out + at, 0, LANES, 1))
            return 0;
    return at == n || sort_lanes(&network, x + at, stride, out + at, 0, n - at, 1);
}

/* The exact product of each two rows of integers: the numbers of a row times its scale, rounded; each
   below 2^16. Added up above the diagonal of `products`, (rows, rows). Which of the two shapes is the
   faster depends on the processor's registers. */
#define PRODUCTS barnraise_products_narrow
#define VECTOR_BYTES 32
#define LEFT 4
#define RIGHT 2
#include "products.h"
#undef PRODUCTS
#undef VECTOR_BYTES
#undef RIGHT

#define PRODUCTS barnraise_products_wide
#define VECTOR_BYTES 64
#define RIGHT 4
#include "products.h"

/* The sum of squares of the same integers, of each row. */
KERNEL void barnraise_squares(const float *x, size_t stride, size_t rows, size_t n,
                              const float *scales, double *squares)
{
    for (size_t row = 0; row < rows; row++) {
        const float *from = x + row * stride;
        float scale = scales[row];
        double total[STRIP_LANES] ALIGNED = {0.0};
        size_t i = 0;
        for (; i + STRIP_LANES <= n; i += STRIP_LANES)
            for (size_t k = 0; k < STRIP_LANES; k++) {
                double integer = rounded(from[i + k] * scale);
                total[k] += integer * integer;
            }
        for (; i < n; i++) {
            double integer = rounded(from[i] * scale);
            total[0] += integer * integer;
        }
        for (size_t k = 1; k < STRIP_LANES; k++)
            total[0] += total[k];
        squares[row] = total[0];
    }
}

/* codes = x times the reciprocal of its block's scale, rounded; n is a multiple of the block. */
KERNEL void barnraise_int8_codes(const float *x, size_t blocks, size_t block,
                                 const float *reciprocals, uint8_t *restrict codes)
{
    for (size_t b = 0; b < blocks; b++) {
        const float *from = x + b * block;
        uint8_t *to = codes + b * block;
        float reciprocal = reciprocals[b];
        for (size_t k = 0; k < block; k++)
            to[k] = (uint8_t)bits_of(from[k] * reciprocal + ROUNDING);
    }
}

/* out = codes times the scale of their block. */
KERNEL void barnraise_int8_values(const int8_t *codes, size_t blocks, size_t block,
                                  const float *scales, float *restrict out)
{
    for (size_t b = 0; b < blocks; b++) {
        const int8_t *from = codes + b * block;
        float *to = out + b * block;
        float scale = scales[b];
        for (size_t k = 0; k < block; k++)
            to[k] = (float)from[k] * scale;
    }
}

/* out = the sum of factor times row, first row first, of rows of codes; n is a multiple of the block,
   and that of LANES. */
KERNEL void barnraise_int8_sum(const int8_t *const *codes, const float *const *scales,
                               const float *factors, size_t num_rows, size_t block,
                               float *restrict out, size_t n)
{
    for (size_t at = 0; at < n; at += LANES) {
        float total[LANES] ALIGNED;
        for (size_t row = 0; row < num_rows; row++) {
            const int8_t *from = codes[row] + at;
            FETCH(from + 4 * AHEAD);
            float factor = factors[row], scale = scales[row][at / block];
            if (row == 0)
                for (size_t k = 0; k < LANES; k++)
                    total[k] = factor * ((float)from[k] * scale);
            else
                for (size_t k = 0; k < LANES; k++)
                    total[k] += factor * ((float)from[k] * scale);
        }
        for (size_t k = 0; k < LANES; k++)
            out[at + k] = total[k];
    }
}

/* codes = how many steps x lies above its block's first level, rounded, from 0 to `most`. */
KERNEL void barnraise_shift_codes(const float *x, size_t blocks, size_t block, const float *firsts,
                                  const float *per_step, float most, uint8_t *restrict codes)
{
    for (size_t b = 0; b < blocks; b++) {
        const float *from = x + b * block;
        uint8_t *to = codes + b * block;
        float first = firsts[b], factor = per_step[b];
        for (size_t k = 0; k < block; k++) {
            float level = (from[k] - first) * factor;
            /* Clipped first: the same, for both bounds are integers, and of what is left every
               number is small enough to be rounded. */
            level = level < 0.0f ? 0.0f : level;
            level = level > most ? most : level;
            to[k] = (uint8_t)bits_of(level + ROUNDING);
        }
    }
}

/* out = codes times the step of their block, from its first level on. */
KERNEL void barnraise_shift_values(const uint8_t *codes, size_t blocks, size_t block,
                                   const float *steps, const float *firsts, float *restrict out)
{
    for (size_t b = 0; b < blocks; b++) {
        const uint8_t *from = codes + b * block;
        float *to = out + b * block;
        float step = steps[b], first = firsts[b];
        for (size_t k = 0; k < block; k++)
            to[k] = (float)from[k] * step + first;
    }
}

/* The smallest and the largest element of each block; one that holds what is no number has no order
   and is refused before. */
KERNEL void barnraise_bounds(const float *x, size_t blocks, size_t block, float *least, float *most)
{
    for (size_t b = 0; b < blocks; b++) {
        const float *from = x + b * block;
        int32_t low = INT32_MAX, high = INT32_MIN;
        for (size_t k = 0; k < block; k++) {
            int32_t key = key_of((int32_t)bits_of(from[k]));
            low = lower(low, key);
            high = higher(high, key);
        }
        least[b] = value_of(key_of(low));
        most[b] = value_of(key_of(high));
    }
}

/* Of each lane the sum of its strips by halves. */
static inline __attribute__((always_inline)) void fold_strips(double *square, size_t lanes,
                                                              double *restrict sums)
{
    for (size_t half = STRIPS / 2; half; half /= 2)
        for (size_t i = 0; i < half * lanes; i++)
            square[i] += square[half * lanes + i];
    for (size_t k = 0; k < lanes; k++)
        sums[k] = square[k];
}

/* The sum of a power of two of values by halves, which are overwritten. */
static inline __attribute__((always_inline)) double folded(double *restrict level, size_t width)
{
    while (width > 1) {
        width /= 2;
        for (size_t i = 0; i < width; i++)
            level[i] += level[width + i];
    }
    return level[0];
}

/* The sum of squares in float64, halves added to halves; n is a power of two, and `level` has room
   for n / STRIPS, which is at least STRIP_LANES. */
KERNEL double barnraise_squared_norm(const float *x, size_t n, double *restrict level)
{
    size_t width = n / STRIPS;
    for (size_t at = 0; at < width; at += STRIP_LANES) {
        double square[STRIPS][STRIP_LANES] ALIGNED;
        for (size_t strip = 0; strip < STRIPS; strip++) {
            const float *from = x + strip * width + at;
            for (size_t k = 0; k < STRIP_LANES; k++)
                square[strip][k] = (double)from[k] * (double)from[k];
        }
        fold_strips(square[0], STRIP_LANES, level + at);
    }
    return folded(level, width);
}

/* The same of codes times the scale of their block; a strip has whole blocks. */
KERNEL double barnraise_int8_squared_norm(const int8_t *codes, size_t block, const float *scales,
                                          size_t n, double *restrict level)
{
    size_t width = n / STRIPS;
    for (size_t at = 0; at < width; at += LANES) {
        double square[STRIPS][LANES] ALIGNED;
        for (size_t strip = 0; strip < STRIPS; strip++) {
            size_t first = strip * width + at;
            float scale = scales[first / block];
            for (size_t k = 0; k < LANES; k++) {
                double value = (float)codes[first + k] * scale;
                square[strip][k] = value * value;
            }
        }
        fold_strips(square[0], LANES, level + at);
    }
    return folded(level, width);
}

/* The outer steps of training/outer/__init__.py. What is written may be what is read. */
KERNEL void barnraise_sgd(const float *anchor, const float *aggregate, float learning_rate,
                          float *out, size_t n)
{
    INDEPENDENT
    for (size_t i = 0; i < n; i++)
        out[i] = anchor[i] - learning_rate * aggregate[i];
}

/* The same on an aggregate that is still coded: times the step of its block, from its first level on,
   and never in memory. The last block may be shorter. */
KERNEL void barnraise_shift_sgd(const uint8_t *codes, size_t block, const float *steps,
                                const float *firsts, const float *anchor, float learning_rate,
                                float *out, size_t n)
{
    for (size_t b = 0; b * block < n; b++) {
        float step = steps[b], first = firsts[b];
        size_t stop = (b + 1) * block < n ? (b + 1) * block : n;
        INDEPENDENT
        for (size_t i = b * block; i < stop; i++) {
            float gradient = (float)codes[i] * step + first;
            out[i] = anchor[i] - learning_rate * gradient;
        }
    }
}

KERNEL void barnraise_nesterov(const float *anchor, const float *aggregate, const float *momentum,
                               float learning_rate, float factor, float *anchor_out,
                               float *momentum_out, size_t n)
{
    INDEPENDENT
    for (size_t i = 0; i < n; i++) {
        float gradient = aggregate[i];
        float velocity = factor * momentum[i] + gradient;
        float update = (factor * velocity + gradient) * learning_rate;
        anchor_out[i] = anchor[i] - update;
        momentum_out[i] = velocity;
    }
}

KERNEL void barnraise_shift_nesterov(const uint8_t *codes, size_t block, const float *steps,
                                     const float *firsts, const float *anchor,
                                     const float *momentum, float learning_rate, float factor,
                                     float *anchor_out, float *momentum_out, size_t n)
{
    for (size_t b = 0; b * block < n; b++) {
        float step = steps[b], first = firsts[b];
        size_t stop = (b + 1) * block < n ? (b + 1) * block : n;
        INDEPENDENT
        for (size_t i = b * block; i < stop; i++) {
            float gradient = (float)codes[i] * step + first;
            float velocity = factor * momentum[i] + gradient;
            float update = (factor * velocity + gradient) * learning_rate;
            anchor_out[i] = anchor[i] - update;
            momentum_out[i] = velocity;
        }
    }
}
