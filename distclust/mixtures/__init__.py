"""Which groups there are, and how sure that is: Dirichlet-process mixtures.

Names load on first use: workers need the samplers only.
"""

from __future__ import annotations
