// specfast._host: host data structures that Python drives.
#include <pybind11/pybind11.h>

PYBIND11_MODULE(_host, m) { m.doc() = "Host data structures of specfast."; }
