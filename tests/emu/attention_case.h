// Problems for tree_attention, and what it should answer. A token is a number: its K, V and queries
// depend on nothing else, so a row can be looked at in any batch, cache layout or tree.
#pragma once
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "core/bf16.h"
#include "core/paged_kv.h"
#include "core/tree.h"
#include "device.h"

namespace attention_case {

using namespace device;
using specfast::Bf16;
using specfast::DType;

struct Row {
  int token;  // whose queries it has
  int32_t position;
  uint64_t bits = 0;
};

struct Sequence {
  std::vector<int> slots;  // the token in each logical slot
  int32_t node_base;
  std::vector<Row> rows;
  int32_t kv_start = 0;
};

struct Shape {
  int64_t dim = 64, kv_heads = 1, group = 1, block_size = 16;
  int64_t window = 0;
  float soft_cap = 0.0f, scale = 0.125f;
  int64_t heads() const { return kv_heads * group; }
};

// `n` normal values that belong to a token; all of them are bf16.
inline const std::vector<float>& values_of(int token, int what, int64_t n) {
  static std::map<std::tuple<int, int, int64_t>, std::vector<float>> known;
  auto [at, fresh] = known.try_emplace({token, what, n});
  if (fresh)
    at->second = map<float>(normal((size_t)n, (unsigned)token * 3 + (unsigned)what),
                            [](float x) { return specfast::widen(specfast::narrow<Bf16>(x)); });
  return at->second;
}
inline std::vector<float> queries_of(const Shape& shape, int token) {
  return values_of(token, 2, shape.heads() * shape.dim);
}

// How a batch is laid out, which no row may notice.
struct Layout {
  unsigned pages = 1;        // seed of where blocks lie
  int strays = 0;            // rows of no sequence, before and after
  int empty_sequences = 0;   // behind the others
  int spare_blocks = 0;      // of every block table
  float query_noise = 0.0f;  // relative; what rounding to bf16 removes
  int odd_row = -1;          // whose queries are multiplied by odd_factor
  float odd_factor = 1.0f;
  int64_t num_blocks = 0;  // of a cache that is 0, or as few as will do, of one that is NaN
  bool workspace = true;   // as much as is best, or as little as will do
};

struct Batch {
  Shape shape;
  std::vector<Sequence> sequences;
  Layout layout;

  int64_t num_rows() const {
    int64_t rows = 2 * layout.strays;
    for (const Sequence& s : sequences) rows += (int64_t)s.rows.size();
    return rows;
  }
};

// The slots that a row sees, in the order of their logical positions.
inline std::vector<int64_t> seen_by(const Shape& shape, const Sequence& s, const Row& row) {
  std::vector<int64_t> slots;
  specfast::Span span = specfast::visible(s.kv_start, row.position, shape.window);
  for (int64_t p = span.begin; p < span.end; p++) {
    int64_t depth = p - s.node_base;
    slots.push_back(depth < 0 ? p : s.node_base + specfast::node_at_depth(row.bits, (int)depth));
  }
  return slots;
}

// The tensors of a batch, the cache apart.
template <class T>
struct Tensors {
  std::vector<T> q;
  std::vector<int32_t> tables, indptr, node_base, kv_start, positions;
  std::vector<int64_t> bits;
  int64_t max_blocks = 0, num_blocks = 0;

  explicit Tensors(const Batch& batch) {
    lay_out_cache(batch);
    auto add_row = [&](const std::vector<float>& queries, const Row& row) {
      for (float x : queries) q.push_back(specfast::narrow<T>(x + x * batch.layout.query_noise));
      positions.push_back(row.position), bits.push_back((int64_t)row.bits);
    };
    auto add_strays = [&] {
      for (int i = 0; i < batch.layout.strays; i++)
        add_row(queries_of(batch.shape, 77), {77, -1, 0});
    };
    add_strays();
    for (const Sequence& s : batch.sequences) {
      indptr.push_back((int32_t)positions.size());
      node_base.push_back(s.node_base), kv_start.push_back(s.kv_start);
      for (const Row& row : s.rows) add_row(queries_of(batch.shape, row.token), row);
    }
    for (int i = 0; i <= batch.layout.empty_sequences; i++)
      indptr.push_back((int32_t)positions.size());
    node_base.resize(indptr.size() - 1), kv_start.resize(indptr.size() - 1);
    add_strays();
    auto width = (size_t)(batch.shape.heads() * batch.shape.dim);
    for (size_t i = 0; batch.layout.odd_row >= 0 && i < width; i++) {
      T& x = q[(size_t)batch.layout.odd_row * width + i];
      x = specfast::narrow<T>(specfast::widen(x) * batch.layout.odd_factor);
    }
  }

  specfast::TreeAttentionParams params(const Shape& shape) const {
    specfast::TreeAttentionParams p{};
    p.B = (int64_t)node_base.size(), p.M = (int64_t)positions.size(), p.H = shape.heads();
    p.max_blocks = max_blocks, p.q_stride = p.H * shape.dim;
    p.window = shape.window, p.scale = shape.scale, p.soft_cap = shape.soft_cap;
    p.dtype = sizeof(T) == 2 ? DType::bf16 : DType::f32;
    p.cache = {nullptr, num_blocks, shape.block_size, shape.kv_heads, shape.dim, DType::bf16};
    return p;
  }

  size_t cache_size() const { return (size_t)(2 * num_blocks * block_size_ * token_size_); }

  // K and V of what some row sees.
  void fill(Bf16* cache) const {
    for (const auto& [slot, token] : seen_)
      for (int plane = 0; plane < 2; plane++) {
        const auto& values = values_of(token, plane, token_size_);
        int64_t at = specfast::kv_offset(num_blocks * block_size_, token_size_, plane, slot);
        std::transform(values.begin(), values.end(), cache + at, specfast::narrow<Bf16>);
      }
  }

 private:
  void lay_out_cache(const Batch& batch) {
    block_size_ = batch.shape.block_size, token_size_ = batch.shape.kv_heads * batch.shape.dim;
    auto blocks_of = [&](const Sequence& s) {
      return specfast::cuda::ceil_div((int64_t)s.slots.size(), block_size_);
    };
    for (const Sequence& s : batch.sequences) {
      max_blocks = std::max(max_blocks, blocks_of(s) + batch.layout.spare_blocks);
      num_blocks += blocks_of(s);
    }
    num_blocks = std::max(num_blocks + 2, batch.layout.num_blocks);
    std::vector<int32_t> free((size_t)num_blocks);
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), std::mt19937(batch.layout.pages));
    for (const Sequence& s : batch.sequences) {
      size_t table = tables.size();
      tables.resize(table + (size_t)max_blocks, -1);
      for (int64_t i = 0; i < blocks_of(s); i++, free.pop_back())
        tables[table + (size_t)i] = free.back();
      for (const Row& row : s.rows)
        for (int64_t i : seen_by(batch.shape, s, row))
          seen_[specfast::slot_of(&tables[table], block_size_, i)] = s.slots[(size_t)i];
    }
    tables.resize(tables.size() + (size_t)(batch.layout.empty_sequences * max_blocks), -1);
  }

  std::map<int64_t, int> seen_;  // slot of the cache -> token
  int64_t block_size_ = 0, token_size_ = 0;
};

template <class T>
bool all_zero(const std::vector<T>& values) {
  std::vector<T> zeros(values.size());
  return check::first_difference(values, zeros) < 0;
}

template <class T>
std::vector<T> without_strays(const Batch& batch, const std::vector<T>& out) {
  auto strays = (ptrdiff_t)(batch.layout.strays * batch.shape.heads() * batch.shape.dim);
  CHECK(all_zero(std::vector<T>(out.begin(), out.begin() + strays)));
  CHECK(all_zero(std::vector<T>(out.end() - strays, out.end())));
  return std::vector<T>(out.begin() + strays, out.end() - strays);
}

// The outputs of the sequences' rows, [rows, H, D], the same in every order of threads. `change`
// may put other values into the tensors, the cache apart.
template <class T, class Change>
std::vector<T> attend(const Batch& batch, const Change& change) {
  Tensors<T> host(batch);
  specfast::TreeAttentionParams p = host.params(batch.shape);
  auto floats = specfast::cuda::tree_attention_workspace(p);
  p.workspace_floats = batch.layout.workspace ? floats.best : floats.least;
  Device<T> q(host.q);
  auto cache = batch.layout.num_blocks ? Device<Bf16>::sparse(host.cache_size())
                                       : Device<Bf16>(host.cache_size());
  host.fill(cache.data());
  change(host);
  Device<int32_t> tables(host.tables), indptr(host.indptr), node_base(host.node_base),
      kv_start(host.kv_start), positions(host.positions);
  Device<int64_t> bits(host.bits);
  p.q = reinterpret_cast<const float*>(q.data()), p.cache.data = cache.data();
  p.block_tables = tables.data(), p.qo_indptr = indptr.data(), p.node_base = node_base.data();
  p.kv_start = kv_start.data(), p.positions = positions.data(), p.node_bits = bits.data();
  std::vector<T> out = everywhere([&] {
    Device<T> out(host.q.size());
    Device<float> workspace((size_t)p.workspace_floats);
    auto launched = p;
    launched.out = reinterpret_cast<float*>(out.data()), launched.workspace = workspace.data();
    specfast::cuda::tree_attention(launched, nullptr);
    return out.host();
  });
  return without_strays(batch, out);
}

template <class T>
std::vector<T> attend(const Batch& batch) {
  return attend<T>(batch, [](const Tensors<T>&) {});
}

// The CPU op's outputs, for queries that are bf16 already.
inline std::vector<float> attend_on_cpu(const Batch& batch) {
  Tensors<float> host(batch);
  specfast::TreeAttentionParams p = host.params(batch.shape);
  std::vector<float> out(host.q.size());
  std::vector<Bf16> cache(host.cache_size(), {0x7fc0});
  host.fill(cache.data());
  p.q = host.q.data(), p.cache.data = cache.data(), p.out = out.data();
  p.block_tables = host.tables.data(), p.qo_indptr = host.indptr.data();
  p.node_base = host.node_base.data(), p.kv_start = host.kv_start.data();
  p.positions = host.positions.data(), p.node_bits = host.bits.data();
  specfast::cpu::tree_attention(p, specfast::serial_for);
  return without_strays(batch, out);
}

// One output in real numbers, and how far an answer may be off. Weights carry the error of their
// score (D fp32 additions, the steps from there to the exponent), output and normaliser that of n
// fp32 additions; a relative error e of weights w moves the output by no more than
// sum(e w |v - o|) / sum((1 - e) w).
struct Expected {
  double rounded, rounded_error;  // with weights rounded to bf16
  double exact, exact_error;      // of an answer whose weights may be rounded to bf16 or not
};

// To 8 significant bits, to nearest even.
inline double to_bf16(double w) {
  int e;
  double m = std::frexp(w, &e);
  return std::ldexp(std::nearbyint(m * 256), e - 8);
}

// A weight, and the bf16 values that it may become.
struct Weight {
  double w, low, high;
};
inline Weight weigh(const Shape& shape, const float* q, const float* k) {
  constexpr double kUlp = 0x1p-23, kLog2e = 1.4426950408889634;
  double dot = 0, size = 0, cap = (double)shape.soft_cap;
  for (int64_t d = 0; d < shape.dim; d++) {
    double product = (double)q[d] * (double)k[d];
    dot += product, size += std::abs(product);
  }
  double s = dot * (double)shape.scale,
         error = (double)shape.dim * kUlp * size * (double)shape.scale;
  if (cap > 0) s = cap * std::tanh(s / cap);
  error = (error + 8 * kUlp * std::abs(s)) * kLog2e;
  double w = std::exp2(s * kLog2e), off = std::exp2(error) * (1 + 2 * kUlp);
  return {w, to_bf16(w / off), to_bf16(w * off)};
}

// Sums over a row's columns for one output, of weights w that may be off by e.
struct Mean {
  double total = 0, weighted = 0, size = 0;
  void add(double w, double v) { total += w, weighted += w * v, size += w * std::abs(v); }
  double value() const { return weighted / total; }
  // Of n fp32 additions above and below.
  double rounding(size_t n) const {
    return (double)(n + 16) * 0x1p-23 * (size / total + std::abs(value()));
  }
};

// Outputs of one head of a row: k and v are those of the columns that it sees, in order.
inline std::vector<Expected> expect(const Shape& shape, const float* q,
                                    const std::vector<const float*>& k,
                                    const std::vector<const float*>& v) {
  std::vector<Weight> weights;
  for (const float* key : k) weights.push_back(weigh(shape, q, key));
  std::vector<Expected> outputs;
  for (int64_t d = 0; d < shape.dim; d++) {
    Mean rounded, exact;
    for (size_t j = 0; j < k.size(); j++) {
      rounded.add((weights[j].low + weights[j].high) / 2, v[j][d]);
      exact.add(weights[j].w, v[j][d]);
    }
    double off = 0, off_total = 0, exact_off = 0;
    for (size_t j = 0; j < k.size(); j++) {
      double spread = (weights[j].high - weights[j].low) / 2;
      off += spread * std::abs(v[j][d] - rounded.value()), off_total += spread;
      double w = weights[j].w, worst = std::max(weights[j].high - w, w - weights[j].low);
      exact_off += worst * std::abs(v[j][d] - exact.value());
    }
    Expected e{};
    if (!k.empty())
      e = {rounded.value(), off / (rounded.total - off_total) + rounded.rounding(k.size()),
           exact.value(), exact_off / (exact.total * (1 - 0x1p-7)) + 2 * exact.rounding(k.size())};
    outputs.push_back(e);
  }
  return outputs;
}

// Of all rows of the sequences.
inline std::vector<Expected> expect(const Batch& batch) {
  const Shape& shape = batch.shape;
  auto values = [&](int what, int token, int64_t kv_head) {
    return values_of(token, what, shape.kv_heads * shape.dim).data() + kv_head * shape.dim;
  };
  std::vector<Expected> outputs;
  for (const Sequence& s : batch.sequences)
    for (const Row& row : s.rows) {
      std::vector<float> q = queries_of(shape, row.token);
      for (int64_t head = 0; head < shape.heads(); head++) {
        std::vector<const float*> k, v;
        for (int64_t slot : seen_by(shape, s, row)) {
          k.push_back(values(0, s.slots[(size_t)slot], head / shape.group));
          v.push_back(values(1, s.slots[(size_t)slot], head / shape.group));
        }
        auto of_head = expect(shape, q.data() + head * shape.dim, k, v);
        outputs.insert(outputs.end(), of_head.begin(), of_head.end());
      }
    }
  return outputs;
}

}  // namespace attention_case
