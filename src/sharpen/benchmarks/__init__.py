"""How fast the method runs, compared with a straightforward implementation and with the limit of the machine."""
