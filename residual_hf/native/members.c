// Training: weighted sums of several streams or earlier outputs, the members of a row, forward and backward.

#include "vector.h"

// sum_k weights[k * stride] * members[k], up to LANES values from `at`.
INLINE vec combine(int members, const float *weights, int stride, const float *const *member, int64_t at, int count) {
    vec total = {0};
    for (int k = 0; k < members; k++) total += weights[k * stride] * load_first(member[k] + at, count);
    return total;
}

// What backward needs of a member of attention.
typedef struct {
    float scale, logit;
} Read;

// The weights of attention over the depth to members v_k: softmax_k(logit) with logit_k = scale_k * (query . v_k) and
// scale_k = 1 / sqrt(mean(v_k^2) + epsilon).
INLINE void attend(const WeightedSums *s, int64_t start, float *weights, Read *reads) {
    float largest = -INFINITY, total = 0;
    for (int k = 0; k < s->members; k++) {
        const float *member = s->member[k] + start;
        reads[k].scale = inverse_deviation(member, s->width, 0, s->epsilon);
        reads[k].logit = reads[k].scale * dot(s->query, member, s->width);
        largest = fmaxf(largest, reads[k].logit);
    }
    for (int k = 0; k < s->members; k++) total += weights[k] = expf(reads[k].logit - largest);
    for (int k = 0; k < s->members; k++) weights[k] /= total;
}

INLINE void sum_members(const WeightedSums *s, int64_t start, const float *weights) {
    for (int i = 0; i < s->width; i += LANES)
        for (int j = 0; j < s->outputs; j++) {
            vec sum = combine(s->members, weights + j * s->members, 1, s->member, start + i, s->width - i);
            store_first(s->output[j] + start + i, s->width - i, sum);
        }
}

// With attention, d member_k = weight_k * d output + d logit_k * d logit_k / d member_k, and the gradient of the query adds up.
INLINE void sum_gradients(const WeightedSums *s, int64_t start, const float *weights, float *gradients,
                          const Read *reads, float *grad_query) {
    float mean = 0, of_query[s->members], of_member[s->members];
    for (int j = 0; j < s->outputs; j++)
        for (int k = 0; k < s->members; k++)
            gradients[j * s->members + k] = dot(s->grad_output[j] + start, s->member[k] + start, s->width);
    for (int k = 0; k < s->members && s->query; k++) mean += weights[k] * gradients[k];
    for (int k = 0; k < s->members && s->query; k++) {
        of_query[k] = weights[k] * (gradients[k] - mean) * reads[k].scale;
        of_member[k] = of_query[k] * reads[k].logit * reads[k].scale / s->width;
    }
    for (int i = 0; i < s->width; i += LANES)
        for (int k = 0; k < s->members; k++) {
            int count = s->width - i;
            vec gradient = combine(s->outputs, weights + k, s->members, s->grad_output, start + i, count);
            if (s->query) {
                vec member = load_first(s->member[k] + start + i, count);
                gradient += load_first(s->query + i, count) * of_query[k] - member * of_member[k];
                store_floats(grad_query + i, load_floats(grad_query + i) + member * of_query[k]);
            }
            store_first(s->grad_member[k] + start + i, count, gradient);
        }
}

static void sum_rows(const void *work, int64_t first, int64_t end, int thread) {
    const WeightedSums *s = work;
    for (int64_t row = first; row < end; row++) {
        int64_t start = row * s->width, matrix = row * s->outputs * s->members;
        float *weights = s->weights + matrix;
        Read *reads = s->query ? (Read *)s->reads + row * s->members : NULL;
        if (s->grad_output) {
            float *grad_query = s->query ? s->grad_query + thread * round_up(s->width, 16) : NULL;
            sum_gradients(s, start, weights, s->grad_weights + matrix, reads, grad_query);
        } else {
            if (s->query) attend(s, start, weights, reads);
            sum_members(s, start, weights);
        }
    }
}

// The outputs, or with grad_output the gradients.
void weighted_sums(const WeightedSums *sums) { run_rows(sums, sums->rows, sums->threads, sum_rows); }
