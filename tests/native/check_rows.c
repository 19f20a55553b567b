/* Layer norm and log-softmax with their gradients, sums of rows, and the gradient of a table. */

#include "check.h"

#include "rows.c"

static void check_layer_norm(ptrdiff_t number, ptrdiff_t height, ptrdiff_t columns, int weighted) {
    const ptrdiff_t count = height * columns;
    float *x = numbers(count), *by = numbers(count), *weight = numbers(columns), *bias = numbers(columns);
    rows p = {.rows = height, .columns = columns, .x = x, .by = by, .weight = weighted ? weight : 0,
              .bias = weighted ? bias : 0, .out = blank(count), .mean = blank(height), .scale = blank(height),
              .eps = 1e-3f};
    hfta_layer_norm(&p);
    rows back = p;
    back.out = blank(count);
    back.by_weight = weighted ? blank(columns) : 0;
    back.by_bias = weighted ? blank(columns) : 0;
    hfta_layer_norm_backward(&back);
    double *out = zeros(count), *dx = zeros(count), *dw = zeros(columns), *db = zeros(columns);
    for (ptrdiff_t i = 0; i < height; i++) {
        double mean = 0, squares = 0, first = 0, second = 0;
        for (ptrdiff_t j = 0; j < columns; j++) mean += (double)x[i * columns + j] / (double)columns;
        for (ptrdiff_t j = 0; j < columns; j++) squares += pow((double)x[i * columns + j] - mean, 2) / (double)columns;
        const double scale = 1 / sqrt(squares + (double)p.eps);
        for (ptrdiff_t j = 0; j < columns; j++) {
            const ptrdiff_t at = i * columns + j;
            const double y = ((double)x[at] - mean) * scale, w = weighted ? (double)weight[j] : 1;
            out[at] = y * w + (weighted ? (double)bias[j] : 0);
            first += (double)by[at] * w / (double)columns;
            second += (double)by[at] * w * y / (double)columns;
            dw[j] += (double)by[at] * y;
            db[j] += (double)by[at];
        }
        for (ptrdiff_t j = 0; j < columns; j++) {
            const ptrdiff_t at = i * columns + j;
            const double y = ((double)x[at] - mean) * scale, w = weighted ? (double)weight[j] : 1;
            dx[at] = ((double)by[at] * w - first - y * second) * scale;
        }
    }
    compare("layer norm", number, p.out, out, count, 1e-5);
    compare("its gradient", number, back.out, dx, count, 1e-5);
    if (weighted) compare("by its weight", number, back.by_weight, dw, columns, 1e-5);
    if (weighted) compare("by its bias", number, back.by_bias, db, columns, 1e-5);
}

static void check_softmax(ptrdiff_t number, ptrdiff_t height, ptrdiff_t columns) {
    const ptrdiff_t count = height * columns;
    float *x = numbers(count), *by = numbers(count);
    for (ptrdiff_t i = 0; i < count; i++) x[i] *= 5;
    float *out = blank(count);
    double *dx = zeros(count);
    for (ptrdiff_t i = 0; i < height; i++) {
        double sum = 0, all = 0;
        for (ptrdiff_t j = 0; j < columns; j++) sum += exp((double)x[i * columns + j]), all += (double)by[i * columns + j];
        for (ptrdiff_t j = 0; j < columns; j++) {
            const ptrdiff_t at = i * columns + j;
            out[at] = (float)((double)x[at] - log(sum));
            dx[at] = (double)by[at] - exp((double)out[at]) * all;
        }
    }
    const rows back = {.rows = height, .columns = columns, .x = out, .by = by, .out = blank(count)};
    hfta_log_softmax_backward(&back);
    compare("the gradient of log-softmax", number, back.out, dx, count, 5e-6);
}

static void check_sums(ptrdiff_t number, ptrdiff_t height, ptrdiff_t columns) {
    const ptrdiff_t groups = 3, table = 5, count = groups * height * columns;
    float *x = numbers(count);
    const rows p = {.rows = groups * height, .columns = columns, .x = x, .out = blank(groups * columns)};
    hfta_column_sums(&p, height);
    int64_t *index = room(groups * height, sizeof(int64_t));
    const rows look = {.rows = groups * height, .columns = columns, .x = (const float *)index, .by = x,
                       .out = blank(table * columns)};
    double *sums = zeros(groups * columns), *rows_of = zeros(table * columns);
    for (ptrdiff_t i = 0; i < groups * height; i++) {
        index[i] = i * 7 % table;
        for (ptrdiff_t j = 0; j < columns; j++) {
            sums[i / height * columns + j] += (double)x[i * columns + j];
            if (index[i] != 2) rows_of[index[i] * columns + j] += (double)x[i * columns + j];
        }
    }
    hfta_embedding_backward(&look, table, 2);
    compare("sums of rows", number, p.out, sums, groups * columns, 2e-6);
    compare("gradient of a table", number, look.out, rows_of, table * columns, 2e-6);
}

int main(void) {
    const ptrdiff_t columns[] = {1, 5, 8, 16, 37, 70, 150};
    for (ptrdiff_t k = 0; k < COUNT(columns); k++) {
        check_layer_norm(2 * k, 3, columns[k] + 1, 0);
        check_layer_norm(2 * k + 1, 3, columns[k] + 1, 1);
        check_softmax(k, 3, columns[k]);
        check_sums(k, k % 2 ? 300 : 2, columns[k]);
    }
    return wrong;
}
