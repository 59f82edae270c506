// The growth of draft trees, for Python.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "host/arrays.h"
#include "host/tree_growth.h"

namespace py = pybind11;

namespace {

using specfast::Array;
using specfast::to_array;
using specfast::TreeGrowth;

TreeGrowth make_growth(Array<int32_t> bases, Array<int32_t> depths, Array<int32_t> nodes,
                       Array<int32_t> slots, Array<int32_t> block_tables, int64_t block_size,
                       int32_t width, int32_t children, float min_survival, float min_extended,
                       bool is_drawn) {
  std::vector<specfast::GrowthLimits> limits;
  for (py::ssize_t b = 0; b < bases.shape(0); b++)
    limits.push_back({bases.at(b), depths.at(b), nodes.at(b), slots.at(b)});
  std::vector<int32_t> tables(block_tables.data(), block_tables.data() + block_tables.size());
  return {{width, children, min_survival, min_extended, is_drawn}, limits, tables, block_size};
}

py::tuple grow(TreeGrowth& self, Array<int32_t> ids, Array<float> confidence) {
  if (ids.ndim() != 2 || ids.shape(0) != self.num_rows() || confidence.size() != ids.size())
    throw py::value_error("grow: ids and confidence must be [" + std::to_string(self.num_rows()) +
                          ", m], a row each that was asked for.");
  auto rows = self.grow(ids.data(), confidence.data(), ids.shape(1));
  return py::make_tuple(to_array(rows.token_ids), to_array(rows.positions), to_array(rows.slots),
                        to_array(rows.node_bits), to_array(rows.qo_indptr), to_array(rows.row_seq),
                        to_array(rows.nodes), to_array(rows.parents));
}

py::tuple trees(const TreeGrowth& self) {
  auto grown = self.trees();
  return py::make_tuple(to_array(grown.tokens), to_array(grown.parents), to_array(grown.lengths),
                        to_array(grown.confidence), to_array(grown.rows));
}

}  // namespace

void bind_growth(py::module_& m) {
  py::class_<TreeGrowth>(m, "TreeGrowth")
      .def(py::init(&make_growth), py::arg("bases"), py::arg("depths"), py::arg("nodes"),
           py::arg("slots"), py::arg("block_tables"), py::arg("block_size"), py::arg("width"),
           py::arg("children"), py::arg("min_survival"), py::arg("min_extended"),
           py::arg("is_drawn") = false)
      .def("grow", &grow,
           "The next rows: token_ids, positions, slots, node_bits, qo_indptr, row_seq, nodes, "
           "parents.")
      .def("trees", &trees, "tokens, parents, lengths, confidence, rows.");
}
