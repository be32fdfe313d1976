// Training: negative log-likelihood of labels, and probabilities in place of the logits, a row at a time.

#include "vector.h"

INLINE vec load_logits(const float *row, int64_t count, float missing) {
    if (count >= LANES) return load_floats(row);
    return choose(first_lanes(count), load_first(row, count), splat(missing));
}

static void softmax_rows(const void *work, int64_t first, int64_t end, int thread) {
    const LabelSoftmax *softmax = work;
    int64_t classes = softmax->width;
    for (int64_t r = first; r < end; r++) {
        float *row = softmax->logits + r * classes;
        vec most = splat(-INFINITY), total = {0}, all = {0};
        for (int64_t i = 0; i < classes; i += LANES) most = MAX(most, load_logits(row + i, classes - i, -INFINITY));
        float largest = largest_lane(most), label = row[softmax->labels[r]] - largest;
        for (int64_t i = 0; i < classes; i += LANES) {
            vec shifted = load_logits(row + i, classes - i, largest) - largest, values = exponential(shifted);
            if (classes - i < LANES) values = only(first_lanes(classes - i), values);
            all += shifted;
            total += values;
            store_first(row + i, classes - i, values);
        }
        float logit_sum = sum(all), normalizer = isnan(logit_sum) ? NAN : sum(total);  // exponentials may pass over NaN
        softmax->nll[r] = logf(normalizer) - label;
        softmax->log_prob_sums[r] = logit_sum - classes * logf(normalizer);
        float factor = 1 / normalizer;
        for (int64_t i = 0; i < classes; i += LANES)
            store_first(row + i, classes - i, load_first(row + i, classes - i) * factor);
    }
}

void label_softmax(const LabelSoftmax *softmax) { run_rows(softmax, softmax->rows, softmax->threads, softmax_rows); }
