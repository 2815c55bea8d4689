import numpy as np
import pytest

from paropt_hpc.errors import DataError
from paropt_hpc.metaheuristics.tsplib import read_tsplib

SQUARE = """NAME: square
TYPE : TSP
DIMENSION: 4
EDGE_WEIGHT_TYPE : {kind}
NODE_COORD_SECTION
1 0.0 0.0
2 0 3e0
3 4 3
 4 4 0
EOF
"""


@pytest.mark.parametrize(
    ("kind", "diagonal"),
    [("EUC_2D", 5), ("CEIL_2D", 5), ("MAN_2D", 7), ("MAX_2D", 4), ("ATT", 2)],
)
def test_distances_of_coordinates(tmp_path, kind, diagonal):
    path = tmp_path / "square.tsp"
    path.write_text(SQUARE.format(kind=kind))
    tour = read_tsplib(path)
    assert tour.name == "square"
    assert tour.distances[0, 2] == tour.distances[3, 1] == diagonal
    assert (np.diag(tour.distances) == 0).all()
    assert tour.space.dimension == 4
    around, across = [0.0, 1, 2, 3], [0.0, 2, 1, 3]
    lengths = tour(np.array([around, across, np.roll(around, 1)]))
    d = tour.distances
    assert lengths[0] == lengths[2] == d[0, 1] + d[1, 2] + d[2, 3] + d[3, 0]
    assert lengths[1] == d[0, 2] + d[2, 1] + d[1, 3] + d[3, 0]


def test_rounding_is_to_the_nearest(tmp_path):
    path = tmp_path / "t.tsp"
    path.write_text(SQUARE.format(kind="EUC_2D").replace("4 4 0", "4 4.5 0"))
    assert read_tsplib(path).distances[0, 3] == 5  # 4.5 up


def test_geographical_distances(tmp_path):
    """Two places of TSPLIB's burma14; its paper's formula by hand."""
    path = tmp_path / "geo.tsp"
    path.write_text(
        "DIMENSION: 2\nEDGE_WEIGHT_TYPE: GEO\nNODE_COORD_SECTION\n1 16.47 96.10\n2 16.47 94.44\n"
    )
    assert read_tsplib(path).distances[0, 1] == 153


MATRIX = np.array([[0.0, 1, 2, 3], [1, 0, 4, 5], [2, 4, 0, 6], [3, 5, 6, 0]])
FORMS = {
    "FULL_MATRIX": MATRIX.ravel(),
    "UPPER_ROW": [1, 2, 3, 4, 5, 6],
    "LOWER_ROW": [1, 2, 4, 3, 5, 6],
    "UPPER_DIAG_ROW": [0, 1, 2, 3, 0, 4, 5, 0, 6, 0],
    "LOWER_DIAG_ROW": [0, 1, 0, 2, 4, 0, 3, 5, 6, 0],
    "UPPER_COL": [1, 2, 4, 3, 5, 6],
    "LOWER_COL": [1, 2, 3, 4, 5, 6],
    "UPPER_DIAG_COL": [0, 1, 0, 2, 4, 0, 3, 5, 6, 0],
    "LOWER_DIAG_COL": [0, 1, 2, 3, 0, 4, 5, 0, 6, 0],
}


@pytest.mark.parametrize("form", FORMS)
def test_matrices(tmp_path, form):
    path = tmp_path / "m.tsp"
    numbers = " ".join(str(int(number)) for number in FORMS[form])
    path.write_text(
        f"DIMENSION: 4\nEDGE_WEIGHT_TYPE: EXPLICIT\nEDGE_WEIGHT_FORMAT: {form}\n"
        f"EDGE_WEIGHT_SECTION\n{numbers}\nEOF\n"
    )
    assert np.array_equal(read_tsplib(path).distances, MATRIX)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no 'DIMENSION'"),
        (
            "DIMENSION: 3\nEDGE_WEIGHT_TYPE: XRAY1\nNODE_COORD_SECTION\n1 0 0\n2 0 0\n3 0 0\n",
            "XRAY1",
        ),
        ("DIMENSION: 3\nEDGE_WEIGHT_TYPE: EUC_2D\nNODE_COORD_SECTION\n1 0 0\n2 0\n", "no whole"),
        ("DIMENSION: x\nEDGE_WEIGHT_TYPE: EUC_2D\n", "no whole"),
        ("DIMENSION: 3\nEDGE_WEIGHT_TYPE: EXPLICIT\nEDGE_WEIGHT_SECTION\n1 2\n", "expected 9"),
    ],
)
def test_damaged_files_are_refused(tmp_path, text, said):
    path = tmp_path / "bad.tsp"
    path.write_text(text)
    with pytest.raises(DataError, match=said):
        read_tsplib(path)
    with pytest.raises(DataError, match="cannot read"):
        read_tsplib(tmp_path / "none.tsp")
