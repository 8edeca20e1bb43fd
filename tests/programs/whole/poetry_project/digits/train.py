import importlib.metadata

import roman
import typer


def main(epochs: int = 3, job_dir: str = "") -> None:
    for epoch in range(1, epochs + 1):
        print(f"epoch {roman.toRoman(epoch)} loss={1 / epoch:.3f} step={epoch}")
    print("version", importlib.metadata.version("digits"))


if __name__ == "__main__":
    typer.run(main)
