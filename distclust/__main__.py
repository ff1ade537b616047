"""``python -m distclust`` is the ``distclust`` command."""

from distclust.cli import run

run()
