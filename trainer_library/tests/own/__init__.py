"""Models of one's own, a file each, as a user writes them; tests/test_own.py trains them."""
