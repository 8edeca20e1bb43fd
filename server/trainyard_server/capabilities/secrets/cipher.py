"""Encryption of secrets at rest, by Fernet (AES-128-CBC with HMAC-SHA256), with a key of the installation."""

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard_server.storage.key_files import DamagedKey, existing_key, key_of

if TYPE_CHECKING:
    from cryptography.fernet import Fernet


class KeyProblem(Exception):
    """Secrets cannot be encrypted or decrypted with the key that is there. The message is for people."""


class SecretCipher:
    """Encrypts and decrypts values. The file is read at each use, so that one that was restored is used at once.

    A ciphertext has the project and the name of its secret in it: in another row of the database it is worth nothing.
    """

    def __init__(self, key_file: Path) -> None:
        self.key_file = key_file

    def encrypt(self, project: str, name: str, value: str, *, is_first: bool) -> str:
        """`is_first`: there is no other secret, so the key may be made. Raises KeyProblem, OSError."""
        content = json.dumps([project, name, value])
        return self._fernet(is_first=is_first).encrypt(content.encode()).decode()

    def decrypt(self, project: str, name: str, ciphertext: str) -> str:
        """Raises KeyProblem, OSError."""
        from cryptography.fernet import InvalidToken

        try:
            content = json.loads(self._fernet().decrypt(ciphertext.encode()))
        except InvalidToken:
            raise KeyProblem(
                f"It was encrypted with another key than the one in {self._name} of the server's data directory."
            ) from None
        if content[:2] != [project, name]:
            raise KeyProblem("Its row in the database was exchanged with that of another secret.")
        return str(content[2])

    def _fernet(self, *, is_first: bool = False) -> "Fernet":
        from cryptography.fernet import Fernet

        try:
            key = key_of(self.key_file) if is_first else existing_key(self.key_file)
        except FileNotFoundError:
            raise KeyProblem(
                f"The key of all secrets, {self._name} of the server's data directory, is missing."
            ) from None
        except DamagedKey:
            raise KeyProblem(
                f"The key of all secrets, {self._name} of the server's data directory, is damaged."
            ) from None
        return Fernet(base64.urlsafe_b64encode(key))

    @property
    def _name(self) -> str:
        return f"{self.key_file.parent.name}/{self.key_file.name}"
