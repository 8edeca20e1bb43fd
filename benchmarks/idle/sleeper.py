"""A program that prints a line and sleeps."""

import time

if __name__ == "__main__":
    print("sleeping")
    while True:
        time.sleep(3600)
