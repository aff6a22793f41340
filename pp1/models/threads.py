"""One BLAS thread per process, set before NumPy is imported.

A leader and two ranks on one small machine fight for its cores when each
process starts a BLAS thread per core; one thread each is faster in sum and
steadier. NumPy's libraries read these variables once, when they are loaded.
"""

import os
from typing import Final

LIMIT_THREADS_ENV: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def limit_threads() -> None:
    """Ask for one thread wherever the user has not asked for another number.

    Has no effect on libraries that are loaded already: call it before the
    first import of NumPy.
    """
    for name in LIMIT_THREADS_ENV:
        os.environ.setdefault(name, "1")
