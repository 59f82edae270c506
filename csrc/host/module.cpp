// specfast._host: host data structures that Python drives.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/philox.h"
#include "host/adjacency.h"
#include "host/arrays.h"
#include "host/draft_tree.h"
#include "host/ngram.h"
#include "host/row_layout.h"

namespace py = pybind11;

void bind_choice(py::module_& m);  // choice_module.cpp
void bind_growth(py::module_& m);  // growth_module.cpp
void bind_suffix(py::module_& m);  // suffix_module.cpp

namespace {

using specfast::Array;
using specfast::to_array;

void bind_ngram(py::module_& m) {
  using specfast::NgramIndex;
  py::class_<NgramIndex>(m, "NgramIndex")
      .def(py::init<int, int>(), py::arg("min_n"), py::arg("max_n"))
      .def("__len__", &NgramIndex::size)
      .def_property_readonly("num_ngrams", &NgramIndex::num_ngrams)
      .def("append",
           [](NgramIndex& self, const std::vector<int32_t>& tokens) {
             self.append(tokens.data(), tokens.size());
           })
      .def("truncate", &NgramIndex::truncate)
      .def("draft", [](const NgramIndex& self, int k) {
        auto draft = self.draft(k);
        return std::make_pair(std::move(draft.tokens), draft.match_length);
      });
}

std::vector<float> gumbel_noise(uint64_t seed, uint32_t position, const std::vector<int32_t>& ids) {
  std::vector<float> noise;
  noise.reserve(ids.size());
  for (int32_t id : ids) noise.push_back(specfast::target_gumbel(seed, position, id));
  return noise;
}

void bind_philox(py::module_& m) {
  using Words = std::array<uint32_t, 4>;
  m.def(
      "philox",
      [](uint64_t seed, const Words& counter) {
        auto x = specfast::philox<uint32_t>({counter[0], counter[1], counter[2], counter[3]}, seed);
        return Words{x.x0, x.x1, x.x2, x.x3};
      },
      py::arg("seed"), py::arg("counter"));
  m.def("gumbel_noise", &gumbel_noise, py::arg("seed"), py::arg("position"), py::arg("ids"));
}

// tokens [n], ids and logits [n, k]: rows of one token each, later ones count.
void replace_rows(specfast::Adjacency& self, Array<int32_t> tokens, Array<int32_t> ids,
                  Array<float> logits) {
  const auto rows = tokens.shape(0), k = ids.shape(1);
  if (ids.shape(0) != rows || logits.shape(0) != rows || logits.shape(1) != k)
    throw std::invalid_argument("need ids and logits of shape [tokens, k]");
  for (py::ssize_t i = 0; i < rows; i++)
    self.replace(tokens.at(i), ids.data() + i * k, logits.data() + i * k, static_cast<int>(k));
}

void bind_adjacency(py::module_& m) {
  using specfast::Adjacency;
  py::class_<Adjacency>(m, "Adjacency")
      .def(py::init<int64_t, int>(), py::arg("vocab_size"), py::arg("width"))
      .def("replace", &replace_rows)
      .def("follow",
           [](Adjacency& self, const std::vector<int32_t>& tokens) {
             self.follow(tokens.data(), tokens.size());
           })
      .def("clear", &Adjacency::clear)
      .def(
          "draft",
          [](const Adjacency& self, int32_t root, int max_depth, int max_nodes, float floor,
             float temperature, uint64_t seed, uint32_t position, bool coupled) {
            auto tree = self.draft(root, max_depth, max_nodes, floor,
                                   {temperature, seed, position, coupled});
            return py::make_tuple(tree.tokens, tree.parents, tree.confidence);
          },
          py::arg("root"), py::arg("max_depth"), py::arg("max_nodes"), py::arg("floor"),
          py::arg("temperature"), py::arg("seed"), py::arg("position"), py::arg("coupled") = true);
}

void bind_row_layout(py::module_& m) {
  using specfast::RowLayout;
  m.def(
      "lay_out_rows",
      [](Array<int32_t> tail_tokens, Array<int32_t> starts, Array<int32_t> num_tokens,
         Array<bool> decides, Array<int32_t> lengths, Array<int32_t> tokens, Array<int32_t> parents,
         Array<int32_t> block_tables, int64_t block_size) {
        RowLayout rows({tail_tokens.data(), starts.data(), num_tokens.data(), decides.data(),
                        lengths.data(), tokens.data(), parents.data(), block_tables.data(),
                        starts.shape(0), tokens.shape(1), block_tables.shape(1), block_size});
        return py::make_tuple(
            to_array(rows.token_ids), to_array(rows.positions), to_array(rows.slots),
            to_array(rows.node_bits), to_array(rows.qo_indptr), to_array(rows.row_base),
            to_array(rows.logit_rows), to_array(rows.row_seq), to_array(rows.decided_positions));
      },
      "The rows of a batch: token_ids, positions, slots, node_bits, qo_indptr, row_base, "
      "logit_rows, row_seq, decided_positions.");
}

}  // namespace

PYBIND11_MODULE(_host, m) {
  m.doc() = "Host data structures of specfast.";
  bind_ngram(m);
  bind_philox(m);
  bind_adjacency(m);
  bind_row_layout(m);
  bind_choice(m);
  bind_growth(m);
  bind_suffix(m);
}
