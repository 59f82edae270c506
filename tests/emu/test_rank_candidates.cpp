#include "sampling.h"

namespace {

using namespace sampling;
using specfast::RankCandidatesParams;

void set(RankCandidatesParams& p, int64_t m, int32_t* ids, float* scores) {
  p.m = m, p.ids = ids, p.scores = scores;
}

std::vector<int32_t> on_cpu(const Rows& rows, int64_t m, const std::vector<int32_t>& d2t) {
  std::vector<int32_t> ids(rows.R() * m);
  std::vector<float> scores(ids.size());
  RankCandidatesParams p{};
  p.logits = rows.logits.data(), p.logits_stride = rows.stride, p.R = rows.R(), p.V = rows.V;
  p.temperature = rows.temperature.data(), p.seeds = rows.seeds.data();
  p.positions = rows.positions.data(), p.d2t = d2t.empty() ? nullptr : d2t.data();
  set(p, m, ids.data(), scores.data());
  specfast::cpu::rank_candidates(p, specfast::serial_for);
  return joined({ids}, scores);
}

template <class T>
std::vector<int32_t> on_device(const Rows& rows, int64_t m, const std::vector<int32_t>& d2t) {
  DeviceRows<T> in(rows);
  Device<int32_t> map(d2t);
  return everywhere([&] {
    Device<int32_t> ids(rows.R() * m);
    Device<float> scores(ids.size());
    RankCandidatesParams p{};
    p.logits = reinterpret_cast<const float*>(in.logits.data()), p.logits_stride = rows.stride;
    p.R = rows.R(), p.V = rows.V, p.dtype = sizeof(T) == 2 ? DType::bf16 : DType::f32;
    p.temperature = in.temperature.data(), p.seeds = in.seeds.data();
    p.positions = in.positions.data(), p.d2t = d2t.empty() ? nullptr : map.data();
    set(p, m, ids.data(), scores.data());
    Device<char> workspace(specfast::cuda::workspace_bytes(p));
    p.workspace = workspace.data();
    specfast::cuda::rank_candidates(p, nullptr);
    return joined({ids.host()}, scores.host());
  });
}

void check(Rows rows, int64_t m, const std::vector<int32_t>& d2t = {}) {
  auto expected = on_cpu(rows, m, d2t), got = on_device<float>(rows, m, d2t);
  CHECK_BYTES(got, expected);
  rows.round();
  auto expected_of_bf16 = on_cpu(rows, m, d2t), got_of_bf16 = on_device<Bf16>(rows, m, d2t);
  CHECK_BYTES(got_of_bf16, expected_of_bf16);
}

TEST(rank_candidates_gives_the_bytes_of_the_cpu) {
  for (int64_t V : {1, 3, 100, 8191, 8192, 8193})
    for (int64_t m : {1, 150}) {
      Rows rows(V, V + V % 4);
      for (int64_t n = 0; n < (V < 1000 ? 24 : 5); n++)
        rows.add(some_logits(n, V), some_settings(3 * n + 1, V));
      check(rows, m);
      check(rows, m, some_map(V));
    }
}

TEST(rank_candidates_takes_a_whole_vocabulary) {
  Rows rows(32000);
  for (float temperature : {0.0f, 1.0f}) rows.add(logits(32000, 3), {temperature});
  check(rows, 10);
}

TEST(rank_candidates_survives_a_map_that_repeats_itself) {
  Rows rows(100);
  for (float temperature : {0.0f, 1.0f}) rows.add(std::vector<float>(100, 1.0f), {temperature});
  check(rows, 7, std::vector<int32_t>(100, 5));
}

TEST(rank_candidates_takes_no_rows_and_no_places) {
  check(Rows(100), 3);
  Rows rows(100);
  rows.add(logits(100, 1));
  check(rows, 0);
}

}  // namespace
