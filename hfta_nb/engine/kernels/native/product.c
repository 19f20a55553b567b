/* Batched matrix products in float32, C = A B, with optional bias, ReLU or mask of a ReLU's gradient.

   B is packed in panels of columns (and transposed if its columns are not adjacent). A is read entry by entry, so it may
   have any strides. */

#include "alive.h"
#include "tiles.h"

/* The strides are in entries. */
typedef struct {
    ptrdiff_t members, rows, inner, columns;
    ptrdiff_t a_member, a_row, a_inner;
    ptrdiff_t b_member, b_inner, b_column;
    ptrdiff_t c_member, c_row; /* columns of C, bias and mask are adjacent in memory */
    ptrdiff_t bias_member, bias_row;
    ptrdiff_t mask_member, mask_row;
    ptrdiff_t relu;
    const float *a, *b;
    float *c;
    const float *bias, *mask; /* null for none */
    float *room;              /* work memory for a panel of B: `hfta_product_room` entries */
} product;

ptrdiff_t hfta_product_room(ptrdiff_t inner) { return (inner < DEEP ? inner : DEEP) * PANEL; }

void hfta_product(const product *p) {
    for (ptrdiff_t member = 0; member < p->members; member++)
        for (ptrdiff_t left = 0; left < p->columns; left += PANEL) {
            const ptrdiff_t columns = p->columns - left < PANEL ? p->columns - left : PANEL;
            const int across = (int)((columns + WIDE - 1) / WIDE);
            ptrdiff_t top = 0;
            do { /* runs once even if the inner axis is empty */
                const ptrdiff_t inner = p->inner - top < DEEP ? p->inner - top : DEEP;
                const float *b = p->b + member * p->b_member + top * p->b_inner + left * p->b_column;
                panel now = {inner, columns - (across - 1) * WIDE, p->a_row, p->a_inner, p->b_inner, p->c_row,
                             p->bias_row, p->mask_row, b, 0, 0, top == 0, top + inner == p->inner, p->relu != 0};
                if (p->bias) now.bias = p->bias + member * p->bias_member + left;
                if (p->mask) now.mask = p->mask + member * p->mask_member + left;
                if (p->b_column != 1 || columns != PANEL) {
                    packed(b, inner, p->b_inner, p->b_column, columns, p->room);
                    now.b = p->room;
                    now.b_inner = across * WIDE;
                }
                const float *a = p->a + member * p->a_member + top * p->a_inner;
                rows_of(&now, across, a, p->c + member * p->c_member + left, p->rows);
                top += inner;
            } while (top < p->inner);
        }
}
