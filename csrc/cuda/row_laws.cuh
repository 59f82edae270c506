// The laws of all rows of a call, for ops that use them more than once: plan_laws writes work.laws,
// measure_laws after it their sums.
#pragma once
#include "cuda/row_law.cuh"

namespace specfast::cuda {

struct LawWork : RowWork {
  RowLaw* laws;     // [R]
  Wide* totals;     // [R] of the support's masses; measure_laws adds them up
  Wide* surprises;  // [R] sum of w o, likewise, of weights w = 2^-o

  LawWork(const LogitRows& p, Carver& c) : RowWork{VocabSlices(p.V)} {
    carve(c, p.R, false);
    laws = c.take<RowLaw>(p.R);
    totals = c.take<Wide>(p.R);
    surprises = c.take<Wide>(p.R);
  }
};

void plan_laws(const LogitRows& p, const LawWork& work, Stream stream);
void measure_laws(const LogitRows& p, const LawWork& work, Stream stream);

}  // namespace specfast::cuda
