// Closed tours of n cities by symmetric distances: local search by 2-opt and Or-opt moves with
// neighbour lists, restarted by small double bridges, and the construction of tours by ants.
//
// distances is n x n, symmetric; near is n x k: of each city, others from the nearest on; a tour
// lists the cities. Results do not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paropt {

double tour_length(const double* distances, std::size_t n, const std::uint32_t* tour);

// Improve m tours, each on its own: to a local optimum, then by so many kicks of a few neighbouring
// sections, each with local search around it, that are undone when the tour became longer.
void improve_tours(const double* distances, std::size_t n, const std::uint32_t* near, std::size_t k,
                   std::size_t kicks, std::uint64_t key, std::size_t m, std::uint32_t* tours);

// m tours of ants, who go on to a near city in proportion to attraction (n x n), or to the most
// attractive one when all near ones have been visited.
void ant_tours(const double* attraction, std::size_t n, const std::uint32_t* near, std::size_t k,
               std::uint64_t key, std::size_t m, std::uint32_t* tours);

}  // namespace paropt
