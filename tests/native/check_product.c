/* Products of many sizes and orders in memory, with a bias before and a ReLU or a mask after. */

#include "check.h"

#include "product.c"

static void check(ptrdiff_t number, ptrdiff_t rows, ptrdiff_t inner, ptrdiff_t columns, int turned, int after) {
    const ptrdiff_t members = 2, made = members * rows * columns;
    float *a = numbers(members * rows * inner), *b = numbers(members * inner * columns), *c = blank(made);
    float *bias = numbers(members * columns), *mask = numbers(made);
    const product p = {.members = members, .rows = rows, .inner = inner, .columns = columns,
                       .a_member = rows * inner, .a_row = turned ? 1 : inner, .a_inner = turned ? rows : 1,
                       .b_member = inner * columns, .b_inner = turned ? 1 : columns, .b_column = turned ? inner : 1,
                       .c_member = rows * columns, .c_row = columns, .bias_member = columns,
                       .mask_member = rows * columns, .mask_row = columns, .relu = after == 1, .a = a, .b = b, .c = c,
                       .bias = after ? bias : 0, .mask = after == 2 ? mask : 0,
                       .room = blank(hfta_product_room(inner))};
    hfta_product(&p);
    double *exact = zeros(made);
    for (ptrdiff_t m = 0; m < members; m++)
        for (ptrdiff_t i = 0; i < rows; i++)
            for (ptrdiff_t j = 0; j < columns; j++) {
                double sum = after ? (double)bias[m * columns + j] : 0;
                for (ptrdiff_t k = 0; k < inner; k++)
                    sum += (double)a[m * p.a_member + i * p.a_row + k * p.a_inner] *
                           (double)b[m * p.b_member + k * p.b_inner + j * p.b_column];
                const ptrdiff_t at = (m * rows + i) * columns + j;
                exact[at] = (after == 1 && sum < 0) || (after == 2 && mask[at] <= 0) ? 0 : sum;
            }
    compare("product", number, c, exact, made, 2e-6);
}

int main(void) {
    const ptrdiff_t sizes[][3] = {{1, 1, 1}, {5, 3, 17}, {8, 10, 40}, {13, 40, 64}, {16, 40, 33}, {5, 530, 23}};
    for (ptrdiff_t k = 0; k < COUNT(sizes); k++)
        for (int how = 0; how < 6; how++) check(6 * k + how, sizes[k][0], sizes[k][1], sizes[k][2], how & 1, how >> 1);
    return wrong;
}
