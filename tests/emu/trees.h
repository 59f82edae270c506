// Draft trees over rows of logits, for the tests of the ops that accept paths.
#pragma once
#include "sampling.h"

namespace sampling {

// Trees of up to N nodes; a tree's rows follow one another, the root's first.
class Trees {
 public:
  explicit Trees(int64_t nodes, int64_t vocab, int64_t stride = 0)
      : N(nodes), rows(vocab, stride) {}

  // parents[i] < i; law_rows: -1 for a point mass.
  void add(const std::vector<int32_t>& parent, std::vector<int32_t> token, Settings s,
           std::vector<int32_t> laws = {}, unsigned logits_seed = 1) {
    row_base.push_back((int32_t)rows.R()), roots.push_back(s.position);
    lengths.push_back((int32_t)parent.size());
    for (int64_t i = 0; i <= (int64_t)parent.size(); i++) {
      rows.add(logits(rows.V, logits_seed + (unsigned)rows.R(), 1.5f), s);
      row_status.push_back(0);
      s.position++;
    }
    append(parents, parent, -1), append(tokens, token, -1), append(law_row, laws, -1);
  }
  void add_padding() {
    row_base.push_back(-1), roots.push_back(-1), lengths.push_back(0);
    append(parents, {}, -1), append(tokens, {}, -1), append(law_row, {}, -1);
  }
  int64_t B() const { return (int64_t)lengths.size(); }
  int64_t size_of_output() const { return B() * (N + 3); }
  template <class Params>
  void set(Params& p, int32_t* out) const {
    rows.set(p);
    p.row_status = row_status.data(), p.row_base = row_base.data();
    p.draft_tokens = tokens.data(), p.parents = parents.data(), p.lengths = lengths.data();
    set_output(p, out);
  }
  template <class Params>
  void set_output(Params& p, int32_t* out) const {
    p.B = B(), p.N = N, p.path = out, p.num_accepted = out + B() * N;
    p.next_tokens = p.num_accepted + B(), p.status = p.next_tokens + B();
  }

  int64_t N;
  Rows rows;
  std::vector<int32_t> row_status, row_base, roots, tokens, parents, lengths, law_row;

 private:
  void append(std::vector<int32_t>& to, std::vector<int32_t> values, int32_t fill) {
    values.resize((size_t)N, fill);
    to.insert(to.end(), values.begin(), values.end());
  }
};

template <class T>
struct DeviceTrees {
  explicit DeviceTrees(const Trees& t)
      : trees(t),
        rows(t.rows),
        row_status(t.row_status),
        row_base(t.row_base),
        roots(t.roots),
        tokens(t.tokens),
        parents(t.parents),
        lengths(t.lengths),
        law_row(t.law_row) {}

  template <class Params>
  void set(Params& p, int32_t* out) const {
    rows.set(p);
    p.row_status = row_status.data(), p.row_base = row_base.data();
    p.draft_tokens = tokens.data(), p.parents = parents.data(), p.lengths = lengths.data();
    trees.set_output(p, out);
  }

  const Trees& trees;
  DeviceRows<T> rows;
  Device<int32_t> row_status, row_base, roots, tokens, parents, lengths, law_row;
};

// Trees with values that nobody has looked at, and what an op takes them for: a token without
// probability, or a sequence without rows. Their last token is made to have none.
struct Junk {
  explicit Junk(Trees trees) : given(trees), taken_as(trees) {
    Rows& rows = trees.rows;
    int32_t last = (int32_t)rows.V - 1, R = (int32_t)rows.R();
    for (int64_t row = 0; row < R; row++) rows.logits[row * rows.stride + last] = -kInf;
    // root, length
    const int32_t bad[][2] = {{0, (int32_t)trees.N + 1}, {R - 1, 1}, {R, 0}, {R + 1, -3}};
    for (size_t i = 0; i < 4; i++) trees.add_padding();
    given = taken_as = trees;
    for (size_t i = 0; i < 4; i++) {
      size_t b = given.row_base.size() - 4 + i;
      given.row_base[b] = bad[i][0], given.lengths[b] = bad[i][1];
    }
    for (size_t i = 1; i < given.tokens.size(); i += 4) {
      given.tokens[i] = pick({-1, last + 1, INT32_MAX, INT32_MIN}, (int64_t)i);
      taken_as.tokens[i] = last;
    }
  }
  Trees given, taken_as;
};

// Chains, forks and bushes; siblings distinct.
inline std::vector<int32_t> some_parents(int64_t n, int64_t nodes) {
  std::vector<int32_t> parent;
  int64_t size = n % 7 == 6 ? 0 : nodes - n % 3;
  for (int32_t i = 0; i < size; i++)
    parent.push_back(n % 3 == 0 ? i - 1 : n % 3 == 1 ? i / 2 - 1 : i < 4 ? -1 : i % 4);
  return parent;
}
inline std::vector<int32_t> some_tokens(int64_t n, int64_t nodes, int64_t vocab) {
  std::vector<int32_t> token;
  for (int64_t i = 0; i < nodes; i++) token.push_back((int32_t)((5 * i + n * n) % vocab));
  return token;
}

}  // namespace sampling
