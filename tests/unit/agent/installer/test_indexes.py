"""Settings of pip as uv takes them."""

from trainyard_agent.installer.indexes import Indexes, parse, parse_listed

_DEFAULT = "https://uv.example/simple"


def test_settings_of_pip_are_variables_of_uv() -> None:
    listed = """
global.index-url='https://u:p@mirror.example/simple'
global.extra-index-url='https://one.example/simple\\nfile:///srv/two/simple'
global.find-links='/srv/wheels'
global.constraint='/etc/constraints.txt'
global.timeout='15'
global.cert='/etc/ca.pem'
install.find-links='/srv/others'
user.index-url='https://nobody.example'
:env:.trusted-host='one.example two.example'
:env:.timeout='60'
install.pre='true'
"""
    found = parse(parse_listed(listed))
    assert found.variables({"UV_INDEX": "https://three.example", "SSL_CERT_FILE": "/its/own.pem"}) == {
        "UV_DEFAULT_INDEX": "https://u:p@mirror.example/simple",
        "UV_INDEX": "https://one.example/simple file:///srv/two/simple https://three.example",
        "UV_FIND_LINKS": "/srv/others",
        "UV_CONSTRAINT": "/etc/constraints.txt",
        "UV_INSECURE_HOST": "one.example two.example",
        "UV_HTTP_TIMEOUT": "60",
        "UV_PRERELEASE": "allow",
    }
    assert found.shown().startswith("https://mirror.example/simple, https://one.example/simple, ")
    assert not found.none
    assert parse(parse_listed(":env:.no-index='1'\n:env:.find-links='/a /b'\n")).shown() == "/a, /b"


def test_index_that_does_not_answer_leaves_the_others() -> None:
    several = Indexes(default="https://a.example/simple", extra=["https://u:p@b.example/simple"])
    cases: dict[str, tuple[str, str, list[str]]] = {
        "https://b.example/simple/six/": ("https://b.example/simple", "https://a.example/simple", []),
        "https://a.example/simple/six/": ("https://a.example/simple", "https://u:p@b.example/simple", []),
    }
    wrong = []
    for url, (gone, default, extra) in cases.items():
        found = several.without(url, _DEFAULT)
        if found is None or (found[0], found[1].default, found[1].extra) != (gone, default, extra):
            wrong.append((url, found))
    assert not wrong
    assert several.without("https://files.example/six.whl", _DEFAULT) is None
    assert Indexes().without(f"{_DEFAULT}/six/", _DEFAULT) is None
    alone = Indexes(links=["/srv/wheels"]).without(f"{_DEFAULT}/six/", _DEFAULT)
    assert alone is not None
    assert alone[1].none
