"""Recipes and flags: how what a user types becomes a frozen dataclass."""
