def load(size: int) -> None:
    if size % 32:
        raise ValueError(f"image size {size} is not a multiple of 32")


load(50)
