"""``python -m worker``: the worker leader's daemon."""

from pp1.models.threads import limit_threads

limit_threads()  # before anything imports NumPy

from .daemon import main  # noqa: E402

if __name__ == "__main__":
    main()
