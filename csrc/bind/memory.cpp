#include "door.h"

namespace specfast::bind {

bool advise_huge_pages(Tensor t) {
  check_contiguous(t, "t");
  return cpu::advise_huge_pages(t.mutable_data_ptr(), t.numel() * (int64_t)t.element_size());
}

void stream_read(const Tensor& data, Tensor sums) {
  Door door;
  StreamReadParams p{};
  p.data = door.i32_in(data, "data", {-1, 1024});
  p.chunks = data.size(0);
  p.sums = door.i32_out(sums, "sums", {p.chunks});
  door.run(p, "stream_read", cpu::stream_read);
}

SPECFAST_REGISTER_CPU(advise_huge_pages)
SPECFAST_REGISTER_CPU(stream_read)

}  // namespace specfast::bind
