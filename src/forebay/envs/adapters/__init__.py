"""Known environments as text: Gymnasium, TextArena and reasoning-gym, each imported only where it is used."""
