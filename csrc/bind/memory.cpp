#include "checks.h"
#include "kernels.h"

namespace specfast::bind {

bool advise_huge_pages(Tensor t) {
  check_contiguous(t, "t");
  return cpu::advise_huge_pages(t.mutable_data_ptr(), t.numel() * (int64_t)t.element_size());
}

int64_t stream_read(const Tensor& t) {
  check_contiguous(t, "t");
  return (int64_t)cpu::stream_read(t.const_data_ptr(), t.numel() * (int64_t)t.element_size(),
                                   torch_parallel_for);
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  m.impl("advise_huge_pages", TORCH_BOX(&advise_huge_pages));
  m.impl("stream_read", TORCH_BOX(&stream_read));
}

}  // namespace specfast::bind
