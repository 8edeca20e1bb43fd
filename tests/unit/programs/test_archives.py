from pathlib import Path

import pytest

from trainyard_programs import archives
from trainyard_protocol.errors import InvalidArgument


def test_check_archive_of_what_is_none_is_refused(tmp_path: Path) -> None:
    for name in ("a.txt", "trainer-1.0.tar.gz", "trainer-1.0.whl"):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\n")
    rows = {
        "a.txt": ".tar.gz, .tgz, .zip, .whl",
        "none.tar.gz": "No such file",
        "trainer-1.0.tar.gz": "is not an archive, despite its name.",
        "trainer-1.0.whl": "is not an archive, despite its name.",
    }
    for name, says in rows.items():
        with pytest.raises(InvalidArgument) as caught:
            archives.check_archive(tmp_path / name)
        assert says in caught.value.message
