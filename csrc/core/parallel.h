// How a kernel asks its caller for threads: the pool belongs to whoever calls (torch, or a test).
#pragma once
#include <cstdint>
#include <type_traits>

namespace specfast {

// A non-owning reference to a callable (begin, end); it must outlive the call it is passed to.
class RangeBody {
 public:
  template <class F>
  RangeBody(const F& f)  // NOLINT: implicit on purpose, so that lambdas can be passed
      : object_(&f),
        call_([](const void* o, int64_t b, int64_t e) { (*static_cast<const F*>(o))(b, e); }) {}
  void operator()(int64_t begin, int64_t end) const { call_(object_, begin, end); }

 private:
  const void* object_;
  void (*call_)(const void*, int64_t, int64_t);
};

// Runs body over [0, n) in chunks of at least `grain`; no result may depend on the chunking.
using ParallelFor = void (*)(int64_t n, int64_t grain, RangeBody body);

inline void serial_for(int64_t n, int64_t, RangeBody body) {
  if (n > 0) body(0, n);
}

}  // namespace specfast
