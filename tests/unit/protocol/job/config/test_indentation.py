import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard_protocol.job.config.indentation import rebuild

TUTORIAL = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: n1-standard-8
  masterConfig:
    imageUri: gcr.io/{path/to/image}:{tag}
  useChiefInTfConfig: true
  workerType: n1-standard-8
  workerCount: 1
  workerConfig:
    acceleratorConfig:
      count: 1
      type: NVIDIA_TESLA_T4
"""

FULL = """\
# the job
labels:
  team: vision
  type: demo
trainingInput:
  scaleTier: CUSTOM   # machines below
  masterType: n1-standard-8
  args:
    - --epochs=5
    - "two words"
    # the rate
    - '0.1'
  workerConfig:
    acceleratorConfig:
      type: NVIDIA_TESLA_T4
      count: 2
    containerCommand: [python, train.py]
  hyperparameters:
    goal: MAXIMIZE
    params:
      - parameterName: rate
        type: DOUBLE
        minValue: 0.1
        maxValue: 1

      - parameterName: kind
        type: CATEGORICAL
        categoricalValues:
          - a
          - b
    maxTrials: 3
  scheduling:
    maxRunningTime: 3600s
  region: us-central1
jobId: mine
"""


def flat(text: str) -> str:
    return "".join(f"{line.strip()}\n" for line in text.splitlines())


def test_rebuild_gives_back_what_a_web_page_took() -> None:
    texts = {
        "all": flat(TUTORIAL),
        "with lists, comments and labels": flat(FULL),
        "one level": TUTORIAL.replace("    imageUri", "  imageUri"),
        "every second line": "".join(
            line.lstrip() if n % 2 else line for n, line in enumerate(TUTORIAL.splitlines(keepends=True))
        ),
        "non-breaking spaces": flat(TUTORIAL).replace(": ", ":\xa0").replace("\ntype", "\n\xa0\xa0type"),
        "tabs": "".join(f"\t{line}\n" for line in flat(TUTORIAL).splitlines()),
        "Windows": flat(TUTORIAL).replace("\n", "\r\n"),
        "snake case": flat(TUTORIAL).replace("trainingInput", "training_input").replace("imageUri", "image_uri"),
    }
    expected = {
        name: FULL
        if name.startswith("with")
        else TUTORIAL.replace("trainingInput", "training_input").replace("imageUri", "image_uri")
        if name == "snake case"
        else TUTORIAL
        for name in texts
    }
    assert {name: rebuild(text) for name, text in texts.items()} == expected


@pytest.mark.parametrize(
    "text",
    [
        TUTORIAL,
        FULL,
        "",
        "trainingInput:\nscaleTyer: CUSTOM\n",
        "trainingInput:\nargs:\n- a\ncount: 1\n",
        "trainingInput:\nmasterConfig:\nimageUri: |\nx\n",
        "trainingInput:\nregion: a\nregion: b\n",
        "trainingInput:\nregion: *x\n",
        "trainingInput:\njust text\nregion: a\n",
        "trainingInput:\n  masterConfig:\n  workerType: local-1\n",
        '{"trainingInput":\n{"region": "a"}}',
        "trainingInput:\n" + "region: a\n" * 3000,
    ],
)
def test_rebuild_leaves_alone_what_it_cannot_place_or_need_not(text: str) -> None:
    assert rebuild(text) is None


@given(st.text(alphabet="trainingInput:argslb-#'\"{}[]|>&* \n\t\xa0", max_size=200))
def test_rebuild_of_any_text_is_a_config_of_the_same_words_or_nothing(text: str) -> None:
    rebuilt = rebuild(text)
    if rebuilt is not None:
        assert rebuilt.replace(" ", "").split() == text.replace("\xa0", " ").replace(" ", "").split()
