"""Tokens of ServiceAccounts: signed here, and recognised again as long as what they are bound to is there.

They are JSON Web Tokens with the claims of Kubernetes' own (`kubernetes.io`), signed with a key on the curve P-256.
Source: pkg/serviceaccount/claims.go and the TokenRequest REST of kubernetes/kubernetes.
"""

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from koordinator.api import user_files
from koordinator.clock import Clock, parse_rfc3339
from koordinator.local.store import ObjectStore

if TYPE_CHECKING:  # read when the first token is asked for or shown
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

ISSUER = "https://kubernetes.default.svc.cluster.local"
"""Issuer, and the audience of a token that names none: this API server."""

USER_PREFIX = "system:serviceaccount:"
KNOWN_MAX = 1_024
"""Tokens whose signatures are remembered."""
LIFE_S_MIN, LIFE_S_DEFAULT, LIFE_S_MAX = 600, 3600, 2**32
_GRACE_S = 60  # a token outlives the deletion of its pod by this, so that the pod can end in peace
_ALGORITHM = "ES256"
_NAMESPACE = "kubernetes.io"
_BOUND_TABLES = {"pod": "pods", "secret": "secrets", "node": "nodes"}
"""Name of a claim that binds a token → the table of its objects."""


def looks_like_a_token(text: str) -> bool:
    """Return whether a text has the three parts of a JSON Web Token."""
    return text.count(".") == 2


class BadToken(ValueError):
    """The text is no token of this cluster, or one that is no longer good; the message says why."""


class Reference(msgspec.Struct, frozen=True, omit_defaults=True):
    """An object by name and uid."""

    name: str
    uid: str = ""


class Account(msgspec.Struct, frozen=True):
    """The account that a token stands for, and what else it is bound to by claim (`pod`, `secret`, `node`)."""

    namespace: str
    account: Reference
    bound: dict[str, Reference] = {}

    @property
    def user(self) -> str:
        """Return the name of the user: `system:serviceaccount:NAMESPACE:NAME`."""
        return f"{USER_PREFIX}{self.namespace}:{self.account.name}"

    @property
    def groups(self) -> tuple[str, ...]:
        """Return all ServiceAccounts, those of the namespace, and everybody who is known."""
        return (
            "system:serviceaccounts",
            f"system:serviceaccounts:{self.namespace}",
            "system:authenticated",
        )


class ServiceAccountTokens:
    """Signs tokens, and says whom a token stands for.

    `key_file` keeps the key, so that tokens outlive a restart; without it the key is gone with the process.
    """

    def __init__(
        self, store: ObjectStore, clock: Clock, rng: random.Random, key_file: Path | None = None
    ) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng
        self._key_file = key_file
        self._key: EllipticCurvePrivateKey | None = None
        self._known: dict[str, tuple[Account, float, float]] = {}

    def issue(self, account: Account, audiences: list[str], life_s: int) -> tuple[str, int]:
        """Return a signed token, and when it expires (seconds since 1970)."""
        import jwt

        now_s = int(self._clock.now())
        private: dict[str, Any] = {
            "namespace": account.namespace,
            "serviceaccount": msgspec.to_builtins(account.account),
            **{name: msgspec.to_builtins(bound) for name, bound in account.bound.items()},
        }
        claims = {
            "aud": audiences or [ISSUER],
            "exp": now_s + life_s,
            "iat": now_s,
            "iss": ISSUER,
            "jti": f"{self._rng.getrandbits(128):032x}",
            "nbf": now_s,
            "sub": account.user,
            _NAMESPACE: private,
        }
        return jwt.encode(claims, self._signing_key(), algorithm=_ALGORITHM), now_s + life_s

    def verify(self, token: str) -> Account:
        """Return the account that a token stands for, if it was signed here for this API server, and is still good.

        Raises: BadToken.
        """
        if not looks_like_a_token(token):
            raise BadToken("not a JSON Web Token")
        account, begins_s, ends_s = self._read(token)
        now_s = self._clock.now()
        if not begins_s <= now_s < ends_s:
            raise BadToken("service account token has expired" if now_s >= ends_s else "not valid yet")
        self._check_alive("serviceaccounts", account.namespace, account.account)
        for name, reference in account.bound.items():
            if name == "node" and "pod" in account.bound:
                continue  # where the pod runs, for information only
            table = _BOUND_TABLES[name]
            self._check_alive(table, "" if table == "nodes" else account.namespace, reference)
        return account

    def _read(self, token: str) -> tuple[Account, float, float]:
        """Return the account in a token with our signature, and from when to when it is good (seconds since 1970).

        Signatures are checked once: clients send the same token with every request.
        """
        known = self._known.get(token)
        if known is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            known = self._known[token] = self._checked(token)
        return known

    def _checked(self, token: str) -> tuple[Account, float, float]:
        import jwt

        try:
            # Times are held against our clock, which need not be the system's.
            claims = jwt.decode(
                token,
                self._signing_key().public_key(),
                algorithms=[_ALGORITHM],
                audience=ISSUER,
                issuer=ISSUER,
                options={"verify_exp": False, "verify_nbf": False, "verify_iat": False},
            )
            private = dict(claims[_NAMESPACE])
            bound = {
                name: msgspec.convert(private[name], Reference) for name in _BOUND_TABLES if name in private
            }
            account = Account(
                private["namespace"], msgspec.convert(private["serviceaccount"], Reference), bound
            )
            begins_s, ends_s = claims["nbf"], claims["exp"]
        except (jwt.InvalidTokenError, msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
            raise BadToken(str(error)) from None
        return account, begins_s, ends_s

    def _check_alive(self, table: str, namespace: str, reference: Reference) -> None:
        record = self._store.table(table).get(namespace, reference.name)
        if record is None or (reference.uid and record.obj["metadata"]["uid"] != reference.uid):
            raise BadToken(f'{table} "{reference.name}" that the token was made for is gone')
        deleted = record.obj["metadata"].get("deletionTimestamp")
        if deleted and self._clock.now() > parse_rfc3339(deleted) + _GRACE_S:
            raise BadToken(f'{table} "{reference.name}" that the token was made for has been deleted')

    def _signing_key(self) -> "EllipticCurvePrivateKey":
        if self._key is None:
            self._key = _kept_key(self._key_file)
        return self._key


def _kept_key(path: Path | None) -> "EllipticCurvePrivateKey":
    """Return the key in a file, or a new one, which is then kept there."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if path is not None and path.exists():
        found = serialization.load_pem_private_key(user_files.read(path), password=None)
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise BadToken(f"{path}: holds no key of an elliptic curve; move it away to get a new one")
        return found
    key = ec.generate_private_key(ec.SECP256R1())
    if path is not None:
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(pem)
    return key
