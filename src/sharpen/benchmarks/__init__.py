"""How fast the method runs, side by side with a straightforward version of it and with what the machine allows."""
