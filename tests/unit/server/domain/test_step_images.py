"""Images by step, found by their names."""

from trainyard_server.domain.step_images import MAX_GROUPS, MAX_IMAGES, step_images


def groups(*paths: str) -> dict[str, tuple[int, ...]]:
    return {group.name: group.steps for group in step_images(tuple(path.split("/")) for path in paths)}


def test_usual_layouts_are_grouped_by_name() -> None:
    table = {
        ("images/samples/9.png", "images/samples/10.png"): {"samples": (9, 10)},
        ("images/val/recon/1.png", "images/val/recon/2.png"): {"val/recon": (1, 2)},
        ("samples-000120.png", "samples-000240.png", "other-1.png"): {"samples": (120, 240)},
        ("samples_step_5.jpg", "samples_step_6.jpg"): {"samples": (5, 6)},
        ("step_120/x.png", "step_240/x.png", "step_240/y-1.png"): {"x": (120, 240)},
        ("checkpoint-1/media/x.png", "checkpoint-2/media/x.png"): {"media/x": (1, 2)},
        ("plot.png", "chart.svg", "1.txt", "2.txt"): {},
        ("epoch1.png", "epoch2.png"): {"images": (1, 2)},
    }
    assert {paths: groups(*paths) for paths in table} == table


def test_groups_and_images_are_bounded() -> None:
    (group,) = step_images(("images", "a", f"{step}.png") for step in range(MAX_IMAGES + 5))
    assert (group.steps[0], len(group.paths)) == (5, MAX_IMAGES)
    assert group.paths[0] == "images/a/5.png"
    many = [("images", str(name), f"{step}.png") for name in range(MAX_GROUPS + 5) for step in range(2)]
    assert len(step_images(many)) == MAX_GROUPS
    assert step_images([("_" * 250 + ".png",), ("9" * 250 + ".png",), ("a" * 5000 + ".png",)]) == ()
