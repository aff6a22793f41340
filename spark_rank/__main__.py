"""``python -m spark_rank --rank 0|1``: one rank of the pair."""

from pp1.models.threads import limit_threads

limit_threads()  # before anything imports NumPy

from .daemon import main  # noqa: E402

if __name__ == "__main__":
    main()
