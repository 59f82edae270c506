#include "core/bf16.h"
#include "device.h"

namespace {

using namespace device;
using specfast::Bf16;
using specfast::DType;
using specfast::SiluMulParams;

template <class T>
std::vector<T> on_device(const std::vector<T>& gate_up, int64_t M, int64_t F) {
  return everywhere([&] {
    Device<T> in(gate_up), out((size_t)(M * F));
    SiluMulParams p{};
    p.gate_up = reinterpret_cast<const float*>(in.data());
    p.out = reinterpret_cast<float*>(out.data());
    p.M = M, p.F = F, p.dtype = sizeof(T) == 2 ? DType::bf16 : DType::f32;
    specfast::cuda::silu_mul(p, nullptr);
    return out.host();
  });
}

std::vector<float> on_cpu(const std::vector<float>& gate_up, int64_t M, int64_t F) {
  std::vector<float> out((size_t)(M * F));
  SiluMulParams p{};
  p.gate_up = gate_up.data(), p.out = out.data(), p.M = M, p.F = F;
  specfast::cpu::silu_mul(p, specfast::serial_for);
  return out;
}

// Widths and rows that end, and begin, anywhere within 16 bytes.
TEST(silu_mul_gives_the_bytes_of_the_cpu) {
  for (int64_t F : {1, 3, 8, 21, 64, 1029, 5000})
    for (int64_t M : {0, 1, 3}) {
      std::vector<float> gate_up = normal((size_t)(M * 2 * F), 1);
      auto got = on_device(gate_up, M, F), expected = on_cpu(gate_up, M, F);
      CHECK_BYTES(got, expected);
    }
}

TEST(silu_mul_rounds_bf16_once) {
  for (int64_t F : {1, 7, 24, 1029}) {
    auto gate_up = map<Bf16>(normal((size_t)(6 * F), 2), specfast::narrow<Bf16>);
    auto widened = map<float>(gate_up, [](Bf16 x) { return specfast::widen(x); });
    auto got = on_device(gate_up, 3, F);
    auto expected = map<Bf16>(on_cpu(widened, 3, F), specfast::narrow<Bf16>);
    CHECK_BYTES(got, expected);
  }
}

}  // namespace
