import importlib.metadata

import click
import roman


@click.command()
@click.option("--epochs", default=3)
@click.option("--job-dir", default="")
def main(epochs, job_dir):
    for epoch in range(1, epochs + 1):
        print(f"epoch {roman.toRoman(epoch)} loss={1 / epoch:.3f} step={epoch}")
    print("version", importlib.metadata.version("digits"), job_dir)


if __name__ == "__main__":
    main()
