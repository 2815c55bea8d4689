// The bindings of population.hpp, a part of the module _native.
#pragma once

#include <pybind11/pybind11.h>

void define_population(pybind11::module_& m);
