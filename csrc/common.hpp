// Shared by all kernels. (Replaced as the kernels land.)
#pragma once
