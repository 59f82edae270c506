#include "checks.h"
#include "kernels.h"

namespace specfast::bind {

bool advise_huge_pages(Tensor t) {
  check_contiguous(t, "t");
  return cpu::advise_huge_pages(t.mutable_data_ptr(), t.numel() * (int64_t)t.element_size());
}

void stream_read(const Tensor& data, Tensor sums) {
  StreamReadParams p{};
  p.data = i32_in(data, "data", {-1, 1024});
  p.chunks = data.size(0);
  p.sums = i32_out(sums, "sums", {p.chunks});
  cpu::stream_read(p, torch_parallel_for);
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  m.impl("advise_huge_pages", TORCH_BOX(&advise_huge_pages));
  m.impl("stream_read", TORCH_BOX(&stream_read));
}

}  // namespace specfast::bind
