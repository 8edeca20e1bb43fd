"""Outputs of uv and pip: whether an index did not answer."""

from trainyard_agent.installer.tools import no_answer

URL = "http://10.0.0.1:8080/simple/x/"
UV = "error: Request failed after 3 retries in 4.8s\n  cause: Failed to fetch: " + URL
PIP = "WARNING: Retrying (Retry(total=0, connect=None, read=None)) after connection broken by "

OUTPUTS = {
    f"{UV}\n  cause: HTTP status server error (503 Service Unavailable) for url ({URL})\n": "503 Service Unavailable",
    f"{UV}\n  cause: HTTP status client error (429 Too Many Requests) for url ({URL})\n": "429 Too Many Requests",
    f"{UV}\n  cause: HTTP status server error (501 Unsupported method ('HEAD')) for url ({URL})\n": "",
    f"{UV}\n  cause: HTTP status client error (404 Not Found) for url ({URL})\n": "",
    f"{UV}\n  cause: error sending request for url ({URL})\n  cause: client error (Connect)\n"
    "  cause: tcp connect error\n  cause: Connection refused (os error 111)\n": ": Connection refused (os error 111)",
    f"  × Failed to fetch: `{URL}`\n  ├─▶ error sending request for url ({URL})\n  ├─▶ dns error\n"
    "  ╰─▶ failed to lookup address information\n": ": failed to lookup address information",
    f"error: Failed to fetch: {URL}\n  cause: error sending request for url ({URL})\n  cause: client error (Connect)\n"
    "  cause: invalid peer certificate: UnknownIssuer\n": "",
    "error: No solution found when resolving dependencies\n  cause: Because x was not found in the registry": "",
    f"{PIP}'ConnectionResetError(104, 'Connection reset by peer')': /simple/x/\nERROR: None found\n": "reset",
    f"{PIP.replace('total=0', 'total=4')}'ReadTimeoutError()': /simple/x/\nERROR: the build has failed\n": "",
    f"{PIP}'SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...'))': /simple/x/\n": "",
    "  RuntimeError: connection refused by the licence server of setup.py\n": "",
}


def test_output_of_an_installation_names_an_index_that_did_not_answer() -> None:
    found = {output: no_answer(output) for output in OUTPUTS}
    wrong = [(output, found[output]) for output, words in OUTPUTS.items() if not _fits(found[output], words)]
    assert wrong == []


def _fits(found: str, words: str) -> bool:
    return words in found if words else found == ""
