"""`python -m neusight` is the command `neusight`."""

from neusight.integrations.cli import main

raise SystemExit(main())
