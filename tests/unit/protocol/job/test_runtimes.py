from pathlib import Path

import pytest

import trainyard_protocol
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.runtimes import constraints_file, load_runtimes

CPU, CUDA = "trainyard/runtime-jax-cpu:0.2", "trainyard/runtime-jax-cuda:0.2"


def test_every_version_of_ai_platform_is_there_and_any_other_is_refused_with_the_list() -> None:
    table = load_runtimes()
    assert [table.image_for("", gpus=gpus) for gpus in (False, True)] == [CPU, CUDA]
    theirs = [f"1.{minor}" for minor in range(16)] + [f"2.{minor}" for minor in range(1, 12)]
    assert table.offered == (*theirs, "2.15", "torch")
    assert {table.image_for(version, gpus=False) for version in theirs} == {"trainyard/runtime-tensorflow-cpu:0.2"}
    assert all(
        f"runtimeVersion {version} was TensorFlow {version}" in table.substitution(version) for version in theirs
    )
    for version in ("2.12", "0.12", "2.11.cpu.something", "*", "pytorch"):
        with pytest.raises(
            InvalidArgument, match=r"is not a runtime version of this service.*Known: 1\.0, 1\.1, .*torch"
        ):
            table.image_for(version, gpus=False)
    with pytest.raises(InvalidArgument, match=r'Did you mean "torch"\?'):
        table.image_for("pytorch", gpus=False)


def test_versions_of_ai_platform_are_tensorflow_and_what_stands_in_is_said() -> None:
    table = load_runtimes()
    assert table.image_for("1.15", gpus=True) == "trainyard/runtime-tensorflow-cuda:0.2"
    image = table.own_image("2.11", gpus=False)
    assert image is not None
    assert (image.framework, image.packages[0]) == ("tensorflow", "tensorflow-cpu==2.15.1")
    assert table.substitution("2.11") == (
        "runtimeVersion 2.11 was TensorFlow 2.11, which has no packages for today's Python: TensorFlow 2.15 stands in, "
        "unless the agent's own Python has another."
    )
    assert table.substitution("1.15").endswith(" Programs of TensorFlow 1 find its API as tensorflow.compat.v1.")
    assert [table.substitution(version) for version in ("", "2.15", "torch", "*")] == [""] * 4


def test_shipped_images_have_the_projects_version_a_dockerfile_and_a_base_image() -> None:
    table = load_runtimes()
    release = ".".join(trainyard_protocol.__version__.split(".")[:2])
    for image in table.images.values():
        assert image.image.rpartition(":")[2] == release
        assert Path(image.dockerfile).is_file()
        assert table.dockerfile_of(image.image) == image.dockerfile
        assert image.base_image
    assert "\njax==" in constraints_file().read_text()


def test_site_file_is_laid_over_the_shipped_table(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(
        """
        images:
          torch: {image: "registry.example.com/torch:2"}
          mine: {image: "mine:1", dockerfile: images/mine.Dockerfile, baseImage: "python:3.13", packages: [tqdm]}
        versions:
          "2.11": {cpu: torch}
          "3.0": {cpu: mine, gpu: jax-cuda}
        """
    )
    table = load_runtimes(site)
    assert "3.0" in table.offered
    assert "*" not in table.offered
    assert table.substitution("2.11") == ""
    assert table.image_for("2.11", gpus=False) == "registry.example.com/torch:2"
    assert table.image_for("2.11", gpus=True) == "registry.example.com/torch:2"
    assert table.image_for("3.0", gpus=True) == CUDA
    assert table.dockerfile_of("mine:1") == str(tmp_path / "images/mine.Dockerfile")
    assert table.dockerfile_of("registry.example.com/torch:2") == ""
    assert table.dockerfile_of("unknown") == ""
    assert table.images["mine"].packages == ["tqdm"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "site.yaml:1: the file: Input should be a valid dictionary"),
        ("images: {a: {}}", "site.yaml:1: images.a.image: Field required."),
        ("images: {a: {image: ''}}", "site.yaml:1: images.a.image: String should have at least 1 character."),
        ("images: {a: {image: b, tag: c}}", "site.yaml:1: images.a.tag: there is no such entry; allowed: image, "),
        ("versions: {'1': {cpu: nowhere}}", "site.yaml: versions.1: unknown image 'nowhere'; known: jax-c"),
        ("versions: {2.10: {cpu: jax-cpu}}", 'site.yaml:1: versions.2.1: a version .* needs quotes: "2.10".'),
        ("versions: {'1': {gpu: jax-cuda}}", "site.yaml:1: versions.1.cpu: Field required."),
    ],
)
def test_site_file_that_is_wrong_is_refused_with_its_name_and_entry(tmp_path: Path, content: str, message: str) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(content)
    with pytest.raises(InvalidArgument, match=message):
        load_runtimes(site)
