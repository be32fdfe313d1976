// Greedy and beam search, a batch of sentences in one call. `model/search.py` has the same rules in the same order and
// gives the same bits. Sentences that have finished leave the batch: a sentence has a place in it, from 0 on.

#include "vector.h"

enum { ROWS_PER_CALL = 128 };

static const float IMPOSSIBLE = -1e9f;  // the score of what must not be chosen

typedef struct {
    float total;
    int32_t beam, ends;
    int64_t token;
} Candidate;

// Of the running hypotheses; of what is there twice, one is read while the other is written.
typedef struct {
    int32_t *ancestors[2];        // (rows, longest), as in `Memory`
    int64_t *paths[2];            // (rows, 2, longest), as in `Search`
    int32_t *lengths, *sources;   // (rows), as in `Memory`
    int64_t *newest;              // (rows), their last tokens
    int32_t *sentence;            // of each place
    float *totals;                // (places, beams), sums of log-probabilities
    float *goals;                 // (sentences), scores above which a running hypothesis can change the result
    int count;                    // of the following
    float *values;                // (rows, count), log-probabilities of the best tokens to follow
    int64_t *ids;
    float *logits;                // (rows, outputs), if there are rules
    float *scores;                // (threads, outputs)
    Tally *tallies;               // (threads)
    Candidate *best;              // (candidates)
    void *decode;
} Running;

static int parts_for(const Search *s, int rows) { return least(s->threads, most(rows / ROWS_PER_THREAD, 1)); }

static size_t most_of_decoding(const Stack *stack, const Memory *memory, const Search *s) {
    size_t size = 0;
    for (int rows = s->sentences * s->beams; rows; rows--)
        size = most(size, decode_scratch_size(stack, memory, rows, parts_for(s, rows)));
    return size;
}

static size_t place_running(const Stack *stack, const Memory *memory, const Search *s, char *base, Running *r) {
    size_t used = 0, rows = (size_t)s->sentences * s->beams, best = rows * (s->candidates + s->end_tokens);
    for (int i = 0; i < 2; i++) {
        r->ancestors[i] = take(base, &used, rows * s->longest * sizeof(int32_t));
        r->paths[i] = take(base, &used, rows * s->longest * 2 * sizeof(int64_t));
    }
    r->lengths = take(base, &used, rows * sizeof(int32_t));
    r->sources = take(base, &used, rows * sizeof(int32_t));
    r->newest = take(base, &used, rows * sizeof(int64_t));
    r->sentence = take(base, &used, s->sentences * sizeof(int32_t));
    r->totals = take(base, &used, rows * sizeof(float));
    r->goals = take(base, &used, s->sentences * sizeof(float));
    r->values = take(base, &used, best * sizeof(float));
    r->ids = take(base, &used, best * sizeof(int64_t));
    size_t outputs = s->rules ? stack->logits.outputs : 0;
    r->logits = take(base, &used, rows * outputs * sizeof(float));
    r->scores = take(base, &used, s->threads * outputs * sizeof(float));
    r->tallies = take(base, &used, s->threads * sizeof(Tally));
    r->best = take(base, &used, s->candidates * sizeof(Candidate));
    r->decode = take(base, &used, 0);
    return used + (base ? 0 : most_of_decoding(stack, memory, s));
}

size_t search_scratch_size(const Stack *stack, const Memory *memory, const Search *s) {
    Running running;
    return place_running(stack, memory, s, NULL, &running);
}

// At first, a sentence has one row, which is all of its beams.
static int is_first(const Search *s) { return s->length == s->prompt_length; }

static int64_t row_of(const Search *s, int place, int beam) { return is_first(s) ? place : place * s->beams + beam; }

static int is_end(const Search *s, int64_t token) {
    for (int i = 0; i < s->end_tokens; i++)
        if (token == s->end_token[i]) return 1;
    return 0;
}

static int applies(const Search *s, const Rule *rule) { return rule->first <= s->length && s->length < rule->end; }

static int applies_any(const Search *s) {
    for (int i = 0; i < s->rules; i++)
        if (applies(s, s->rule + i)) return 1;
    return 0;
}

static void penalize_repetition(float penalty, int length, const int64_t *sequence, float *scores) {
    for (int i = 0; i < length; i++) {
        float *score = scores + sequence[i];
        int at = 0;
        while (sequence[at] != sequence[i]) at++;
        if (at == i) *score = *score < 0 ? *score * penalty : *score / penalty;  // the first time
    }
}

// No n-gram twice: what followed the newest n - 1 tokens before must not follow again.
static void ban_repeated(int n, int length, const int64_t *sequence, float *scores) {
    const int64_t *newest = sequence + length - (n - 1);
    for (int i = 0; i + n <= length; i++)
        if (!memcmp(sequence + i, newest, (n - 1) * sizeof *sequence)) scores[sequence[i + n - 1]] = -INFINITY;
}

static void apply(const Rule *rule, int length, const int64_t *sequence, int outputs, float *scores) {
    int count = rule->count;
    const int64_t *tokens = rule->tokens;
    switch (rule->kind) {
    case REPETITION_PENALTY: penalize_repetition(rule->penalty, length, sequence, scores); break;
    case NO_REPEAT_NGRAM: ban_repeated(count, length, sequence, scores); break;
    case BAD_WORD:
        if (!memcmp(sequence + length - (count - 1), tokens, (count - 1) * sizeof *tokens))
            scores[tokens[count - 1]] = -INFINITY;
        break;
    case SUPPRESS:
        for (int i = 0; i < count; i++) scores[tokens[i]] = -INFINITY;
        break;
    case FORCE:
        for (int i = 0; i < outputs; i++) scores[i] = -INFINITY;
        for (int i = 0; i < count; i++) scores[tokens[i]] = 0;
    }
}

static void keep_listed(const Memory *m, int sentence, int tokens, float *logits) {
    const int64_t *own = m->list_ids + m->list_starts[sentence], *end = m->list_ids + m->list_starts[sentence + 1];
    for (int token = 0; token < tokens; token++) {
        if (own < end && *own == token)
            own++;
        else
            logits[token] = -INFINITY;
    }
}

static void apply_rules(const Search *s, const int64_t *sequence, int outputs, float *scores) {
    for (int i = 0; s->length < s->min_length && i < s->end_tokens; i++) scores[s->end_token[i]] = -INFINITY;
    for (const Rule *rule = s->rule; rule < s->rule + s->rules; rule++)
        if (applies(s, rule)) apply(rule, s->length, sequence, outputs, scores);
}

static int is_forced(int tokens, const float *scores) {
    int excluded = 0;
    for (int i = 0; i < tokens; i++) excluded += scores[i] == -INFINITY;
    return excluded == tokens - 1;
}

typedef struct {
    const Stack *stack;
    const Memory *memory;
    const Search *search;
    const Running *running;
} Work;

// Rules change log-probabilities in beam search; in greedy search they change logits, and only the choice depends on
// them, except that a token without alternatives has probability 1, too.
static void choose_tokens(const void *argument, int64_t first, int64_t end, int part) {
    const Work *work = argument;
    const Search *s = work->search;
    const Running *r = work->running;
    int tokens = work->stack->vocabulary, outputs = work->stack->logits.outputs;
    float *scores = r->scores + (int64_t)part * outputs;
    for (int64_t row = first; row < end; row++) {
        float *logits = r->logits + row * outputs;
        if (work->memory->listed) keep_listed(work->memory, r->sources[row], tokens, logits);
        memcpy(scores, logits, outputs * sizeof *scores);
        log_softmax(1, outputs, logits, logits);
        if (s->beams > 1) memcpy(scores, logits, outputs * sizeof *scores);
        apply_rules(s, r->paths[s->turn] + row * 2 * s->longest, outputs, scores);
        Candidates best = {1, r->count, r->values + row * r->count, r->ids + row * r->count, r->tallies + part};
        start_candidates(&best);
        add_candidates(&best, outputs, 0, scores);
        for (int i = 0; i < r->count; i++)
            if (best.ids[i] >= tokens) best.ids[i] = 0;
        if (s->beams == 1) *best.log_probs = is_forced(tokens, scores) ? 0 : logits[*best.ids];
    }
}

// Fills the best tokens to follow in each row.
static Progress next_tokens(const Stack *stack, const Memory *memory, const Search *s, Running *r) {
    for (int row = 0; row < s->rows; row++) {
        int sentence = r->sentence[is_first(s) ? row : row / s->beams];
        r->sources[row] = sentence;
        r->lengths[row] = memory->lengths[sentence] + s->length - s->prompt_length;
        r->newest[row] = r->paths[s->turn][(int64_t)row * 2 * s->longest + s->length - 1];
        if (r->lengths[row] >= s->positions) return NO_POSITION;
    }
    Memory now = *memory;
    now.ancestors = r->ancestors[s->turn], now.lengths = r->lengths, now.sources = r->sources;
    Step step = {s->rows, 0, s->entries, s->position, r->newest, r->logits, r->values, r->ids};
    int parts = parts_for(s, s->rows), has_rules = applies_any(s), banned = s->length < s->min_length && !has_rules;
    r->count = least(s->candidates + banned * s->end_tokens, stack->vocabulary);
    if (!has_rules) step.candidates = r->count;
    if (!decode(stack, &now, &step, parts, r->decode)) return NO_TOKEN;
    if (has_rules) {
        Work work = {stack, memory, s, r};
        run_rows(&work, s->rows, parts, choose_tokens);
    }
    for (int64_t i = 0; banned && i < (int64_t)s->rows * r->count; i++)
        if (is_end(s, r->ids[i])) r->values[i] = -INFINITY;
    return PAUSED;
}

static void extend_path(const Search *s, const int64_t *from, int64_t token, int64_t origin, int64_t *to) {
    memcpy(to, from, s->length * sizeof *to);
    memcpy(to + s->longest, from + s->longest, s->length * sizeof *to);
    to[s->length] = token;
    to[s->longest + s->length] = origin;
}

// The hypothesis in a row goes on with a token, in a row of the next step.
static void continue_row(const Search *s, const Running *r, int64_t from, int64_t token, int64_t origin, int64_t to) {
    int64_t path = 2 * s->longest;
    extend_path(s, r->paths[s->turn] + from * path, token, origin, r->paths[!s->turn] + to * path);
    memcpy(r->ancestors[!s->turn] + to * s->longest, r->ancestors[s->turn] + from * s->longest,
           (r->lengths[from] + 1) * sizeof(int32_t));
}

// Greedy search: the most probable token, or the first that is not a number.
static int extend_one(const Search *s, const Running *r, int place, int to) {
    const float *values = r->values + place * r->count;
    int best = 0, sentence = r->sentence[place];
    for (int i = 1; i < r->count && !isnan(values[best]); i++)
        if (!(values[i] <= values[best])) best = i;
    int64_t token = r->ids[place * r->count + best], *found = s->paths + (int64_t)sentence * 2 * s->longest;
    s->scores[sentence] += values[best];
    if (is_end(s, token) || s->length + 1 >= s->limits[sentence]) {
        extend_path(s, r->paths[s->turn] + (int64_t)place * 2 * s->longest, token, sentence, found);
        return 0;
    }
    continue_row(s, r, place, token, sentence, to);
    r->sentence[to] = sentence;
    return 1;
}

// The best `most` in descending order, of equal ones the first; what is not a number comes last. Returns how many.
static int insert(Candidate *best, int found, int most, Candidate new) {
    int at = found;
    while (at > 0 && (new.total > best[at - 1].total || (isnan(best[at - 1].total) && !isnan(new.total)))) at--;
    if (at == most) return found;
    memmove(best + at + 1, best + at, (least(found, most - 1) - at) * sizeof *best);
    best[at] = new;
    return least(found + 1, most);
}

static int best_continuations(const Search *s, const Running *r, int place) {
    int found = 0;
    for (int beam = 0; beam < s->beams; beam++) {
        int64_t first = row_of(s, place, beam) * r->count;
        float total = r->totals[place * s->beams + beam];
        for (int64_t i = first; i < first + r->count; i++)
            found = insert(r->best, found, s->candidates, (Candidate){r->values[i] + total, beam, 0, r->ids[i]});
    }
    return found;
}

static float normalized(const Search *s, float total, int64_t length) {
    return total / (float)pow(length - s->prompt_length, s->length_penalty);
}

// Enter a candidate into the finished hypotheses, if it is among the best.
static void finish(const Search *s, const Running *r, int place, const Candidate *new) {
    int sentence = r->sentence[place], at = s->beams;
    int64_t row = row_of(s, place, new->beam), size = 2 * s->longest;
    float score = normalized(s, new->total, s->length + 1), *scores = s->scores + sentence * s->beams;
    int64_t *lengths = s->lengths + sentence * s->beams, *paths = s->paths + sentence * s->beams * size;
    while (at > 0 && score > scores[at - 1]) at--;
    if (at == s->beams) return;
    int after = s->beams - 1 - at;
    memmove(scores + at + 1, scores + at, after * sizeof *scores);
    memmove(lengths + at + 1, lengths + at, after * sizeof *lengths);
    memmove(paths + (at + 1) * size, paths + at * size, after * size * sizeof *paths);
    scores[at] = score;
    lengths[at] = s->length + 1 - s->prompt_length;
    extend_path(s, r->paths[s->turn] + row * size, new->token, sentence * s->beams + new->beam, paths + at * size);
    if (lengths[s->beams - 1]) r->goals[sentence] = s->early_stopping == AT_ENOUGH ? INFINITY : scores[s->beams - 1];
}

// What a running hypothesis of this total could have, were it to end at the best length.
static float best_possible(const Search *s, int sentence, float total) {
    int to_limit = s->early_stopping == NEVER && s->length_penalty > 0;
    return normalized(s, total, to_limit ? s->limits[sentence] : s->length + 1);
}

// Beam search: extend the hypotheses of a sentence by one token. Returns whether they go on, in the place `to`.
static int extend_beams(const Search *s, const Running *r, int place, int to) {
    int sentence = r->sentence[place], is_last = s->length + 1 >= s->limits[sentence];
    int found = best_continuations(s, r, place);
    for (int i = 0; i < found; i++) r->best[i].ends = is_last || is_end(s, r->best[i].token);
    for (int i = 0; i < s->beams; i++)
        if (r->best[i].ends) finish(s, r, place, r->best + i);
    for (int i = 0; i < found; i++) {
        Candidate each = r->best[i];
        if (each.ends) each.total += IMPOSSIBLE;
        insert(r->best, i, s->candidates, each);
    }
    if (is_last || !(best_possible(s, sentence, r->best->total) > r->goals[sentence])) return 0;
    for (int i = 0; i < s->beams; i++) {
        const Candidate *each = r->best + i;
        int64_t origin = sentence * s->beams + each->beam;
        continue_row(s, r, row_of(s, place, each->beam), each->token, origin, (int64_t)to * s->beams + i);
        r->totals[to * s->beams + i] = each->total;
    }
    r->sentence[to] = sentence;
    return 1;
}

static void start(const Memory *memory, Search *s, const Running *r) {
    s->rows = s->sentences;
    memcpy(r->ancestors[0], memory->ancestors, (size_t)s->rows * s->longest * sizeof(int32_t));
    for (int64_t i = 0, path = 2 * s->longest; i < s->sentences; i++) {
        memcpy(r->paths[0] + i * path, s->paths + i * s->beams * path, path * sizeof(int64_t));
        r->sentence[i] = i;
        r->goals[i] = IMPOSSIBLE;
        for (int beam = 0; beam < s->beams; beam++) r->totals[i * s->beams + beam] = beam ? IMPOSSIBLE : 0;
    }
}

int search(const Stack *stack, const Memory *memory, Search *s, void *scratch) {
    Running running, *r = &running;
    place_running(stack, memory, s, scratch, r);
    if (is_first(s) && !s->rows) start(memory, s, r);
    for (int done = 0; s->rows && done < ROWS_PER_CALL; done += s->rows) {
        if (s->entries + s->rows > s->room) return NO_ROOM;
        Progress progress = next_tokens(stack, memory, s, r);
        if (progress != PAUSED) return progress;
        int places = is_first(s) ? s->rows : s->rows / s->beams, open = 0;
        for (int place = 0; place < places; place++)
            open += (s->beams > 1 ? extend_beams : extend_one)(s, r, place, open);
        s->entries += s->rows;
        s->rows = open * s->beams;
        s->turn = !s->turn;
        s->length++;
    }
    return s->rows ? PAUSED : ENDED;
}
