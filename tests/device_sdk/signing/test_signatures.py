from __future__ import annotations

import subprocess

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa, x25519

from device_sdk.errors import SignatureError
from device_sdk.signing import signatures


@pytest.fixture
def keys(tmp_path):
    """The files of a new pair: (private, public)."""
    paths = tmp_path / "key", tmp_path / "key.pub"
    for path, data in zip(paths, signatures.new_key_pair(), strict=True):
        path.write_bytes(data)
    return paths


@pytest.fixture(params=["RSA", "X25519"])
def foreign_keys(request, tmp_path):
    key = rsa.generate_private_key(65537, 2048) if request.param == "RSA" else x25519.X25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    paths = tmp_path / "foreign", tmp_path / "foreign.pub"
    for path, data in zip(paths, (private, public), strict=True):
        path.write_bytes(data)
    return paths


def test_a_signature_verifies_with_the_other_half_of_its_key(keys):
    private, public = keys
    signature = signatures.sign(b"manifest", private_key=private)
    assert len(signature) == signatures.SIGNATURE_BYTES
    signatures.verify(b"manifest", signature, public_key=public)


def test_every_pair_is_another_one():
    assert signatures.new_key_pair() != signatures.new_key_pair()


@pytest.mark.parametrize("length", [0, 63, 65])
def test_a_signature_of_another_length_is_refused(keys, length):
    with pytest.raises(SignatureError, match=r"not by key\.pub"):
        signatures.verify(b"manifest", b"\0" * length, public_key=keys[1])


def test_altered_data_an_altered_signature_and_another_key_are_refused(keys, tmp_path):
    private, public = keys
    signature = signatures.sign(b"manifest", private_key=private)
    flipped = bytes([signature[0] ^ 1, *signature[1:]])
    other = tmp_path / "other.pub"
    other.write_bytes(signatures.new_key_pair()[1])
    for data, mark, key in [
        (b"Manifest", signature, public),
        (b"manifest", flipped, public),
        (b"manifest", signature, other),
    ]:
        with pytest.raises(SignatureError, match="signature is not by") as caught:
            signatures.verify(data, mark, public_key=key)
        assert caught.value.hint


@pytest.mark.parametrize("content", [b"", b"no key", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"])
def test_what_is_not_pem_is_refused(tmp_path, content):
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(SignatureError, match="is not a public key in PEM form"):
        signatures.verify(b"", b"\0" * 64, public_key=path)
    with pytest.raises(SignatureError, match="is not a private key in PEM form"):
        signatures.sign(b"", private_key=path)


def test_keys_of_another_kind_are_refused(foreign_keys):
    private, public = foreign_keys
    with pytest.raises(SignatureError, match="is not an Ed25519 key"):
        signatures.sign(b"", private_key=private)
    with pytest.raises(SignatureError, match="is not an Ed25519 key"):
        signatures.verify(b"", b"\0" * 64, public_key=public)


def test_a_private_key_that_wants_a_password_is_refused(tmp_path):
    key = x25519.X25519PrivateKey.generate()
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / "key").write_bytes(locked)
    with pytest.raises(SignatureError, match="not a private key in PEM form"):
        signatures.sign(b"", private_key=tmp_path / "key")


@pytest.mark.parametrize("missing", ["nothing", "."])
def test_a_key_file_that_cannot_be_read_is_named(tmp_path, missing):
    path = tmp_path / missing
    with pytest.raises(SignatureError, match="cannot read the key") as caught:
        signatures.verify(b"", b"\0" * 64, public_key=path)
    assert "pathweave sign key new" in caught.value.hint
    with pytest.raises(SignatureError, match="cannot read the key"):
        signatures.sign(b"", private_key=path)


def test_the_halves_of_a_pair_are_not_interchangeable(keys):
    private, public = keys
    with pytest.raises(SignatureError, match="is not a private key"):
        signatures.sign(b"", private_key=public)
    with pytest.raises(SignatureError, match="is not a public key"):
        signatures.verify(b"", b"\0" * 64, public_key=private)


def test_openssl_reads_our_keys_and_agrees_on_signatures(keys, tmp_path):
    private, public = keys
    data, signature = tmp_path / "manifest.json", tmp_path / "manifest.sig"
    data.write_bytes(b'{"a": 1}')
    signature.write_bytes(signatures.sign(data.read_bytes(), private_key=private))
    command = [
        "openssl",
        "pkeyutl",
        "-verify",
        "-pubin",
        "-inkey",
        public,
        "-rawin",
        "-in",
        data,
        "-sigfile",
        signature,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("needs the openssl command")
    assert done.returncode == 0, done.stderr
