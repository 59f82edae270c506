#include "cpu/attention_plan.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {
namespace {

// Packed rows that share a staged tile.
constexpr int kChunkRows = 96;
// Row-tiles below which another thread costs more than it brings.
constexpr int64_t kGrain = 16;

// Tokens of one sequence over one kv head: each tile is staged once for all rows that see it.
template <class Element>
class Attention {
 public:
  Attention(const TreeAttentionParams& p, const Plan& plan, int64_t b, int64_t kv_head)
      : p_(p), plan_(plan), b_(b), kv_head_(kv_head), dim_(p.cache.head_dim) {
    int64_t tile = dim_ * kTile, states = kChunkRows * state_stride(dim_);
    static thread_local Scratch scratch;
    float* floats = (float*)scratch.reserve((2 * tile + 2 * states) * (int64_t)sizeof(float));
    shared_.keys = floats;
    gathered_.keys = floats + tile;
    states_ = floats + 2 * tile;
    totals_ = states_ + states;
    shared_.stride = gathered_.stride = p.cache.num_kv_heads * dim_;
    shared_.plane = gathered_.plane =
        kv_offset(p.cache.num_blocks * p.cache.block_size, shared_.stride, 1, 0);
    shared_.next = gathered_.next = nullptr;
    keys_ = static_cast<const Element*>(p.cache.data) + kv_head * dim_;
  }

  void run(int64_t first_token, int64_t last_token, int64_t split) {
    int64_t packed = (last_token - first_token) * plan_.group;
    for (int64_t x = 0; x < packed; x += kChunkRows) {
      count_ = packed - x < kChunkRows ? (int)(packed - x) : kChunkRows;
      for (int i = 0; i < count_; i++)
        set_row(i, first_token + (x + i) / plan_.group, (x + i) % plan_.group, split);
      if (plan_.partial)
        attend_split(split);
      else
        attend_all_splits();
    }
  }

 private:
  void set_row(int i, int64_t token, int64_t g, int64_t split) {
    int64_t head = kv_head_ * plan_.group + g, base = p_.node_base[b_];
    Span span = visible(p_.kv_start[b_], p_.positions[token], p_.window);
    Row& row = rows_[i];
    row.q = p_.q + token * p_.q_stride + head * dim_;
    row.out = p_.out + (token * p_.H + head) * dim_;
    row.state = plan_.partial ? partial_state(p_, plan_, token, head, split)
                              : states_ + i * state_stride(dim_);
    row.token = token;
    row.begin = span.begin, row.end = span.end;
    row.gathered = base + chain_length((uint64_t)p_.node_bits[token]);
    if (span.end <= base || row.gathered > span.end) row.gathered = span.end;
  }

  void attend_all_splits() {
    int64_t stride = state_stride(dim_);
    for (int i = 0; i < count_; i++) reset_state(totals_ + i * stride, dim_);
    for (int64_t split = plan_.first_split; split < plan_.end_split; split++) {
      attend_split(split);
      for (int i = 0; i < count_; i++)
        if (!seen(rows_[i], split * kSplit, kSplit).empty())
          fold(totals_ + i * stride, rows_[i].state, dim_);
    }
    for (int i = 0; i < count_; i++)
      if (rows_[i].begin < rows_[i].end) write_output(totals_ + i * stride, dim_, rows_[i].out);
  }

  static Span seen(const Row& row, int64_t begin, int64_t length) {
    return Span{row.begin, row.end}.within(begin, begin + length);
  }

  void attend_split(int64_t split) {
    Span all{INT64_MAX, 0};
    for (int i = 0; i < count_; i++) {
      Span span = seen(rows_[i], split * kSplit, kSplit);
      if (span.empty()) continue;
      reset_state(rows_[i].state, dim_);
      if (span.begin < all.begin) all.begin = span.begin;
      if (span.end > all.end) all.end = span.end;
    }
    for (int64_t tile = all.begin / kTile * kTile; tile < all.end; tile += kTile) attend_tile(tile);
  }

  void attend_tile(int64_t tile) {
    int lo = kTile, hi = 0;
    for (int i = 0; i < count_; i++) {
      Row& row = rows_[i];
      Span span = seen(row, tile, kTile);
      row.lo = span.empty() ? 0 : (int)(span.begin - tile);
      row.hi = span.empty() ? 0 : (int)(span.end - tile);
      if (span.empty() || gathers(row, tile)) continue;
      if (row.lo < lo) lo = row.lo;
      if (row.hi > hi) hi = row.hi;
    }
    if (lo < hi) {
      own_columns(shared_.columns, tile, lo, hi);
      stage_keys(shared_, lo, hi, dim_);
      next_columns(tile + kTile);
      shared_.next = next_;
    }
    for (int i = 0; i < count_;) i += attend_some(i, tile);
  }

  bool gathers(const Row& row, int64_t tile) const { return row.gathered < tile + row.hi; }

  // Attends one block of rows from row i on; returns how many rows are done.
  int attend_some(int i, int64_t tile) {
    const Row& row = rows_[i];
    if (row.lo >= row.hi) return 1;
    int n = 1;
    while (n < kBlockRows && i + n < count_ && joins(row, rows_[i + n], tile)) n++;
    if (!gathers(row, tile)) {
      attend_rows<kBlockRows>(shared_, rows_ + i, n);
      shared_.next = nullptr;
      return n;
    }
    if (i == 0 || rows_[i - 1].token != row.token) {
      path_columns(row, tile);
      stage_keys(gathered_, row.lo, row.hi, dim_);
    }
    attend_rows<kBlockRows>(gathered_, rows_ + i, n);
    return n;
  }

  // Rows of one block read the same tile: the shared one, or what one node gathered.
  bool joins(const Row& first, const Row& row, int64_t tile) const {
    if (row.lo >= row.hi) return false;
    return gathers(first, tile) ? row.token == first.token : !gathers(row, tile);
  }

  template <int Rows>
  void attend_rows(const Tile<Element>& tile, const Row* rows, int n) {
    if constexpr (Rows > 1) {
      if (n < Rows) return attend_rows<Rows - 1>(tile, rows, n);
    }
    alignas(64) float scores[Rows][kTile];
    dot_products<Rows>(tile, rows, dim_, scores);
    for (int r = 0; r < Rows; r++) weigh(scores[r], rows[r], dim_, p_.scale, p_.soft_cap);
    add_tile<Rows>(tile, dim_, rows, scores);
  }

  const int32_t* table() const { return p_.block_tables + b_ * p_.max_blocks; }

  // Columns [lo, hi) of the tile, each in the slot of its logical position.
  void own_columns(const Element** columns, int64_t tile, int lo, int hi) const {
    int64_t size = p_.cache.block_size;
    int64_t block = (tile + lo) / size, offset = (tile + lo) % size;
    for (int c = lo; c < hi; block++, offset = 0) {
      const Element* at = keys_ + (table()[block] * size + offset) * shared_.stride;
      for (; offset < size && c < hi; offset++, at += shared_.stride) columns[c++] = at;
    }
  }

  // The columns that a node sees: its ancestors from row.gathered on.
  void path_columns(const Row& row, int64_t tile) {
    int from = row.gathered > tile + row.lo ? (int)(row.gathered - tile) : row.lo;
    own_columns(gathered_.columns, tile, row.lo, from);
    int64_t base = p_.node_base[b_];
    uint64_t bits = (uint64_t)p_.node_bits[row.token];
    for (int64_t depth = tile + from - base; depth > 0; depth--) bits &= bits - 1;
    for (int c = from; c < row.hi; c++, bits &= bits - 1) {
      int64_t slot = slot_of(table(), p_.cache.block_size, base + first_node(bits));
      gathered_.columns[c] = keys_ + slot * gathered_.stride;
    }
  }

  // What this thread reads after the tile before: the last row's next tile, or the next head's
  // first one. Where there is none, any address will do.
  void next_columns(int64_t tile) {
    const Row& last = rows_[count_ - 1];
    bool next_head = tile >= last.gathered && kv_head_ + 1 < p_.cache.num_kv_heads;
    if (next_head) tile = last.begin / kTile * kTile;
    Span span = Span{last.begin, last.gathered}.within(tile, tile + kTile);
    int lo = span.empty() ? 0 : (int)(span.begin - tile);
    int hi = span.empty() ? 0 : (int)(span.end - tile);
    own_columns(next_, tile, lo, hi);
    for (int c = 0; c < kTile; c++)
      next_[c] = lo <= c && c < hi ? next_[c] + (next_head ? dim_ : 0) : keys_;
  }

  const TreeAttentionParams& p_;
  const Plan& plan_;
  int64_t b_, kv_head_, dim_;
  const Element* keys_;  // K of this head in slot 0
  Tile<Element> shared_, gathered_;
  const Element* next_[kTile];
  float *states_, *totals_;  // [kChunkRows] of one split, of all of them
  int count_ = 0;
  Row rows_[kChunkRows];
};

template <class Element>
void run_items(const TreeAttentionParams& p, const Plan& plan, int64_t begin, int64_t end) {
  for_items(p, plan, begin, end,
            [&](int64_t b, int64_t kv_head, int64_t first, int64_t last, int64_t split) {
              Attention<Element>(p, plan, b, kv_head).run(first, last, split);
            });
}

// The states of a row's splits in order, then its output.
void fold_row(const TreeAttentionParams& p, const Plan& plan, Span span, int64_t row) {
  int64_t dim = p.cache.head_dim;
  alignas(64) float total[kMaxHeadDim + 32];
  for (int64_t head = 0; head < p.H; head++) {
    reset_state(total, dim);
    for (int64_t s = span.begin / kSplit; s * kSplit < span.end; s++)
      fold(total, partial_state(p, plan, row, head, s), dim);
    write_output(total, dim, p.out + (row * p.H + head) * dim);
  }
}

void fold_splits(const TreeAttentionParams& p, const Plan& plan, ParallelFor parallel_for) {
  parallel_for(p.M, kGrain, [&](int64_t first, int64_t last) {
    FloatEnv env;
    for (int64_t b = 0; b < p.B; b++)
      for (int64_t row = p.qo_indptr[b]; row < p.qo_indptr[b + 1]; row++) {
        Span span = visible(p.kv_start[b], p.positions[row], p.window);
        if (first <= row && row < last && !span.empty()) fold_row(p, plan, span, row);
      }
  });
}

// A row that sees nothing, or belongs to no sequence, gives 0.
void clear_blind_rows(const TreeAttentionParams& p) {
  int64_t width = p.H * p.cache.head_dim, row = 0;
  auto clear = [&](int64_t r) { memset(p.out + r * width, 0, width * sizeof(float)); };
  for (int64_t b = 0; b < p.B; b++) {
    for (; row < p.qo_indptr[b]; row++) clear(row);
    for (; row < p.qo_indptr[b + 1]; row++)
      if (visible(p.kv_start[b], p.positions[row], p.window).empty()) clear(row);
  }
  for (; row < p.M; row++) clear(row);
}

}  // namespace

void tree_attention(const TreeAttentionParams& p, ParallelFor parallel_for) {
  clear_blind_rows(p);
  Plan plan = make_plan(p);
  parallel_for(plan.cost, kGrain, [&](int64_t begin, int64_t end) {
    FloatEnv env;
    if (p.cache.dtype == DType::bf16)
      run_items<uint16_t>(p, plan, begin, end);
    else
      run_items<float>(p, plan, begin, end);
  });
  if (plan.partial) fold_splits(p, plan, parallel_for);
}

}  // namespace specfast::cpu::SPECFAST_TIER
