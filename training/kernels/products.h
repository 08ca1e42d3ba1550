/* Included by kernels.c, once for each shape of the work: LEFT rows by RIGHT rows at a time, each in a
   vector of VECTOR_BYTES, so that all sums of the inner loop stay in registers. */

#define VECTOR_LANES (VECTOR_BYTES / sizeof(double))

EXACT KERNEL void PRODUCTS(const float *x, size_t stride, size_t rows, size_t n,
                           const float *scales, double *products)
{
#ifdef __clang__
#pragma clang fp contract(fast)
#endif
    typedef double vector __attribute__((vector_size(VECTOR_BYTES), may_alias));
    double tile[ROWS_MAX][TILE] ALIGNED;
    size_t padded = (rows + LEFT - 1) / LEFT * LEFT;
    for (size_t row = rows; row < padded; row++)
        for (size_t k = 0; k < TILE; k++)
            tile[row][k] = 0.0;
    for (size_t at = 0; at < n; at += TILE) {
        size_t here = n - at < TILE ? n - at : TILE;
        for (size_t row = 0; row < rows; row++) {
            const float *from = x + row * stride + at;
            float scale = scales[row];
            if (here < TILE) {
                for (size_t k = 0; k < here; k++)
                    tile[row][k] = rounded(from[k] * scale);
                for (size_t k = here; k < TILE; k++)
                    tile[row][k] = 0.0;
            } else {
                for (size_t k = 0; k < TILE; k += LANES)
                    fetch_ahead(from + k, TILE);
                for (size_t k = 0; k < TILE; k++)
                    tile[row][k] = rounded(from[k] * scale);
            }
        }
        for (size_t i = 0; i < padded; i += LEFT)
            for (size_t j = i; j < padded; j += RIGHT) {
                vector sums[LEFT][RIGHT];
                for (size_t a = 0; a < LEFT; a++)
                    for (size_t b = 0; b < RIGHT; b++)
                        sums[a][b] = (vector){0.0};
                for (size_t k = 0; k < TILE; k += VECTOR_LANES) {
                    vector right[RIGHT];
                    for (size_t b = 0; b < RIGHT; b++)
                        right[b] = *(const vector *)&tile[j + b][k];
                    for (size_t a = 0; a < LEFT; a++) {
                        vector left = *(const vector *)&tile[i + a][k];
                        for (size_t b = 0; b < RIGHT; b++)
                            sums[a][b] += left * right[b];
                    }
                }
                for (size_t a = 0; a < LEFT && i + a < rows; a++)
                    for (size_t b = 0; b < RIGHT && j + b < rows; b++) {
                        double total = 0.0;
                        for (size_t k = 0; k < VECTOR_LANES; k++)
                            total += sums[a][b][k];
                        products[(i + a) * rows + j + b] += total;
                    }
            }
    }
}

#undef VECTOR_LANES
