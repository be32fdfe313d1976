// Types and kernels of decoding and training. `structures.py` reads this file for ctypes, and its checksum is what a
// library and the installed package have to agree on.
//
// Matrices are row-major and dense. In decoding, widths are padded with zeros to a multiple of PADDING values, so that
// no kernel needs a tail; buffers that `linear` reads have rows up to a multiple of ROW_PADDING, whose content does not
// matter. The kernels for training take any width.
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { PADDING = 64, ROW_PADDING = 32, HEAD_PADDING = 32, QUERIES = 4 };
enum { ROWS_PER_THREAD = 32 };  // with fewer, another thread gains little: each of them reads all weights

// Each has a library of its own, compiled from the same sources.
typedef enum { NONE, NEON, NEON_DOTPROD, AVX2, AVX_VNNI, AVX512, AVX512_BF16, AMX } InstructionSet;
typedef enum { FLOAT32, BFLOAT16, INT8 } Type;
typedef enum { IDENTITY, RELU, GELU, SILU } Activation;

// y = activation(W x + b). Activations are FLOAT32 for FLOAT32 weights and BFLOAT16 for the others.
typedef struct {
    int32_t type;
    int32_t inputs, outputs;  // padded
    const void *weights;      // (outputs / p, inputs / n, p, n), with p = panel_width() and n values in 32 bits
    const float *bias;        // (outputs)
    const float *scales;      // INT8: (outputs), what one unit of a weight is worth
    const int32_t *offsets;   // INT8: (outputs), 128 * sum of the weights, see `quantize`
} Linear;

typedef struct {
    const float *gain, *bias;  // (width), padded; gain is NULL where there is no norm
    float epsilon;
    int32_t centered;  // LayerNorm; an RMSNorm takes the mean to be 0
} Norm;

// Which entries of a key/value cache a row attends to: entries[line[row] * stride + (0 .. lengths[line[row]] - 1)].
typedef struct {
    const int32_t *entries;
    int64_t stride;
    const int32_t *line;
    const int32_t *lengths;
} Table;

// In a sum of vectors: weight * number * weights * a vector. In a function of numbers: the sum over the values of that.
enum { NOWHERE = -1, BRANCH = -2 };
typedef struct {
    int32_t source;  // a register, BRANCH (the output of the sub-layer), or NOWHERE: ones, or the number alone
    int32_t number;  // a register, or NOWHERE: 1
    float weight;
    const float *weights;  // (width), padded, or NULL: ones
} Term;

typedef enum { SUM, NUMBER, TANH, SIGMOID, EXP, LOG_SUM_EXP, PRODUCT, INVERSE_LENGTH, SINKHORN } Function;

// Of each row. A SUM of vectors, its norm, or both go to registers (or NOWHERE); other functions make a number, or as
// many as they have terms.
typedef struct {
    int32_t function, terms;
    const Term *term;
    Norm norm;
    int32_t sum, output;
    int32_t hidden;  // whether the output is what the next sub-layer reads
} Operation;

// The residual connections between two sub-layers, or what a mode does within one: `programs.py` finds the operations.
typedef struct {
    int32_t operations;
    int32_t width, stride;       // of vectors, and padded
    int32_t vectors, registers;  // of a row: vectors of `stride` values, and values with all numbers
    const Operation *operation;
} Program;

// Heads are padded to a multiple of HEAD_PADDING values; `attention_width` holds all of them.
enum { AT_QUERY, AT_KEY, AT_VALUE, AT_HEADS };
typedef struct {
    Linear query, key_value, output;
    Program inner[4];    // of each head, and of all heads before the output
    float scale;         // of scores
    float score_factor;  // not 0: softmax of this times the sum of the scores of the layers up to this one
    Program after;
} AttentionLayer;

typedef struct {
    AttentionLayer own, cross;  // `cross` is empty without an encoder
    Linear ffn_in, ffn_gate, ffn_out;  // a gate has weights where it is used, and then `ffn_inner` operations
    Program ffn_inner, after_ffn;
} Layer;

// An encoder, or a decoder with its output projection.
typedef struct {
    int32_t type;  // of activations and caches: FLOAT32 or BFLOAT16
    int32_t layers, vocabulary;
    int32_t width, stride;  // d_model, and padded
    int32_t heads, head_size, attention_width, ffn_width;
    int32_t activation;
    int32_t inner_registers, adds_scores;  // values for the programs within sub-layers, of a row; score_factor is used
    float embedding_scale;
    const float *tokens, *positions;  // (vocabulary, width), (positions, width) or NULL
    const float *frequencies;         // of rotary positions (half a head), or NULL
    Program start;                    // before the first sub-layer
    const Layer *layer;
    Linear logits;
} Stack;

// What a decoder remembers: entries of each layer's cache, one for each row of a step, and those of each row.
typedef struct {
    int32_t max_length, longest_source, source_entries;
    void *const *self_cache;        // for each layer (entries, 2 * attention_width), keys before values
    const void *cross_cache;        // (layers, source_entries, 2 * attention_width)
    int32_t *ancestors;             // (rows, max_length): the entries of each row
    const int32_t *lengths;         // (rows): how many there are before a step
    const int32_t *sources;         // (rows): the line of each row in the following
    const int32_t *source_table;    // (sentences, longest_source)
    const int32_t *source_lengths;  // (sentences)
    const Linear *listed;           // outputs of the tokens that may follow in each sentence, or NULL: all may
    const int32_t *list_starts;     // (sentences + 1): where those of a sentence begin, multiples of PADDING
    const int64_t *list_ids;        // tokens of the outputs, ascending in each sentence, then 0 for padding
} Memory;

// The tokens of a batch of sentences without its padding, and where their states go.
typedef struct {
    const int64_t *tokens, *positions;  // (rows)
    Table table;                        // the entries of each token's sentence
    int32_t longest;                    // length of a sentence
    void *const *cache;                 // for each layer (rows, 2 * attention_width), maybe the same for all
    void *output;                       // (rows + ROW_PADDING, stride): tiles of a part reach beyond its end
} Source;

// One step of all rows: with candidates their log probabilities and ids (rows, candidates), else logits.
typedef struct {
    int32_t rows, candidates;
    int64_t entry, position;  // where the rows are written, and the position of a row without ancestors
    const int64_t *tokens;  // (rows)
    float *logits;          // (rows, outputs)
    float *log_probs;
    int64_t *ids;
} Step;

// What changes the scores of the tokens that may follow a sequence of a length from `first` up to `end`.
typedef enum { REPETITION_PENALTY, NO_REPEAT_NGRAM, BAD_WORD, SUPPRESS, FORCE } RuleKind;
typedef struct {
    int32_t kind, first, end;
    int32_t count;  // of tokens, also of an n-gram
    const int64_t *tokens;
    float penalty;
} Rule;

// A search for the best sequences of each sentence, in the words of `SearchSettings`. Lengths include the prompt. The
// caller fills all but the progress and `lengths` with what is asked, and the results with the prompts, scores without
// a hypothesis, and zeros.
typedef enum { AT_NO_BETTER, AT_ENOUGH, NEVER } EarlyStopping;
typedef struct {
    int32_t sentences, beams, candidates, threads;
    int32_t prompt_length, min_length, longest;  // `longest`: max_length of the memory
    int32_t early_stopping, end_tokens, rules;
    double length_penalty;
    const int64_t *limits;    // (sentences)
    const int64_t *end_token;
    const Rule *rule;         // in the order in which they apply
    int64_t position, positions;  // of a row without ancestors, and how many there are
    int64_t room;                 // entries of the caches
    int32_t length, rows, turn;   // the progress: `length` is that of the prompt and `rows` 0 at first
    int64_t entries;              // that are in use
    int64_t *paths;               // (sentences, beams, 2, longest), tokens and the rows that they were chosen from
    float *scores;                // (sentences, beams), of best hypotheses first; without beams of each token added up
    int64_t *lengths;             // (sentences, beams), of the generated tokens, 0 where nothing is found
} Search;

// A residual connection of training: sum = stream + dropout(branch), output = norm(sum), and with a dual stream
// dual_output = dual + dual_scale * dropout(branch). Tensors are (rows, width); any width is allowed.
typedef struct {
    int64_t rows;
    uint64_t seed;  // of the mask
    int32_t width, threads;
    int32_t centered;                  // LayerNorm; an RMSNorm takes the mean to be 0
    float rate, epsilon, dual_scale;
    const float *gain, *bias;          // (width); without a gain there is no norm, and no output
    const float *branch, *stream, *dual;  // without a stream, it is zeros
    float *sum, *output, *dual_output;
    float *statistics;                 // (rows, 2): mean and 1 / deviation
    const float *grad_output, *grad_dual;  // for backward, with a norm
    float *grad_branch, *grad_stream;
    float *grad_gain, *grad_bias;          // (threads, width up to a multiple of 16), zeros
} DropoutNorm;

// Of training: output[j] = sum_k weights[j][k] * member[k] with weights of each row. With a query, these are those of
// attention over the depth, and there is one output, see members.c. Tensors are (rows, width).
typedef struct {
    int64_t rows;
    int32_t width, members, outputs, threads;
    float epsilon;
    float *weights;      // (rows, outputs, members)
    const float *query;  // (width), times the gain of the norm, or NULL
    float *reads;        // (rows, members, 2), for backward
    const float *const *member;
    float *const *output;
    const float *const *grad_output;
    float *const *grad_member;
    float *grad_weights;
    float *grad_query;  // (threads, width up to a multiple of 16), zeros
} WeightedSums;

// Of training, see dot_attention.c. Heads are a part of the width of (sentences, rows, heads, size), where no strides
// are given; strides are of sentences, heads and rows.
typedef struct {
    int32_t sentences, heads, queries, keys, size, threads;  // `size` of a head
    int32_t causal;
    float scale, rate;
    uint64_t seed;
    const uint8_t *mask;              // where queries may attend, or NULL; rows are padded to 16 keys
    int64_t mask_strides[2];          // of sentences and queries
    const float *query, *key, *value;
    int64_t query_strides[3], key_strides[3], value_strides[3];
    float *output;
    float *log_sums;                  // (sentences, heads, queries), for backward
    const float *grad_output;
    float *grad_query, *grad_key, *grad_value;
    void *scratch;
} DotAttention;

// Of training: output = left right, of matrices whose values are rounded to bfloat16, plus a bias or what is there.
typedef struct {
    int64_t rows, columns, inner;
    int32_t threads, accumulate;
    const float *left, *right;
    int64_t left_strides[2], right_strides[2];  // of rows or columns, and of the inner dimension; one of the two is 1
    const float *bias;                          // (columns) or NULL
    float *output;                              // (rows, columns)
    void *scratch;
} Product;

// Of training: logits (rows, width) become probabilities.
typedef struct {
    int64_t rows;
    int32_t width, threads;
    float *logits;
    const int64_t *labels;
    float *nll, *log_prob_sums;  // (rows), -log p of the label and the sum of log p
} LabelSoftmax;

// Of the bytes of each tensor.
typedef struct {
    int32_t tensors, threads;
    const char *const *data;
    const int64_t *bytes;
    uint64_t *checksum;
} Checksums;

void checksums(const Checksums *all);
size_t encode_scratch_size(const Stack *stack, const Source *source, int parts, const int32_t *starts);
int encode(const Stack *stack, const Source *source, int parts, const int32_t *starts, void *scratch);
size_t decode_scratch_size(const Stack *stack, const Memory *memory, int rows, int parts);
int decode(const Stack *stack, const Memory *memory, const Step *step, int parts, void *scratch);

// Decodes until the search has ENDED or something is missing, and at most ROWS_PER_CALL rows, so that a program can be
// stopped in between; call it again with the same memory, room and scratch. Without a token, it was not in the vocabulary.
typedef enum { ENDED, PAUSED, NO_ROOM, NO_POSITION, NO_TOKEN } Progress;
size_t search_scratch_size(const Stack *stack, const Memory *memory, const Search *search);
int search(const Stack *stack, const Memory *memory, Search *search, void *scratch);

typedef void Team(void (*run)(void *work), void *work, unsigned threads, unsigned flags);
void join_team(Team *of_pytorch);

// Work on the rows from `first` to `end`; two at the same time have different numbers of a thread.
typedef void Run(const void *work, int64_t first, int64_t end, int thread);
void run_rows(const void *work, int64_t rows, int threads, Run *run);

uint32_t interface_version(void);
InstructionSet instruction_set(void);
int can_run(InstructionSet set);
int panel_width(void);

size_t linear_scratch_size(Type type, int rows, int inputs);
void linear(const Linear *linear, int rows, const void *input, Activation activation, void *output, Type output_type,
            void *scratch);

size_t project_scratch_size(const Stack *stack, int rows);
void project_source(const Stack *stack, int rows, const void *states, void *cache, void *scratch);

// softmax(q K^T * scale) V for each row, over the entries of its line. Queries and output are (rows, width), of which
// heads * head_size count; head_size is a multiple of HEAD_PADDING, at most 128.
typedef struct {
    int32_t heads, head_size, width;
    int32_t longest, is_first;  // of `sums`: their line, and whether there are none before
    float factor;               // of sums in place of scores
    const void *queries, *cache;  // (entries, 2 * width), keys before values
    Table table;
    void *output;
    float *scratch;  // QUERIES times the longest line of the table, up to a multiple of 16
    float *sums;     // of the scores of all layers, (rows, heads, longest), or NULL
} Attention;

void attention(const Attention *attention, int rows, Type type, float scale);

void run_program(const Program *program, int rows, float *registers, const float *branch, void *hidden, Type type,
                 float *work);

enum { COLUMNS = 512 };  // logits of a row that are in the cache together

// Of a row: the largest logit, the sum of exp(logit - largest), and how many candidates there are.
typedef struct {
    float largest, total;
    int32_t found;
} Tally;

// The best tokens of rows, in descending order; of equal ones the one of the smaller id first.
typedef struct {
    int32_t rows, count;
    float *log_probs;  // (rows, count), logits until all are known
    int64_t *ids;
    Tally *tallies;  // (rows)
} Candidates;

void start_candidates(const Candidates *best);
void add_candidates(const Candidates *best, int columns, int64_t first_id, const float *logits);
void finish_candidates(const Candidates *best);
void log_softmax(int rows, int columns, const float *logits, float *log_probs);

void dropout_norm(const DropoutNorm *join);
void weighted_sums(const WeightedSums *sums);
size_t dot_attention_scratch_size(const DotAttention *all);
void dot_attention(const DotAttention *all);
size_t product_scratch_size(const Product *product);
void product(const Product *product);
void label_softmax(const LabelSoftmax *softmax);
