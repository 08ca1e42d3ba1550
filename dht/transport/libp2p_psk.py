"""Private swarms: Noise whose every message is under a key that all members share (PSK).

The pattern is XXpsk0 of the Noise specification, revision 34, section 9: the PSK is mixed into the
keys before the first message, so who lacks it cannot read a first message, nor write one that is
answered. It learns neither who listens nor what it serves. The handshake itself is the proof that
both know the PSK: it is bound to this channel's own keys, so a proof can neither be played again
nor passed on to a third. It is offered under a name of its own and nothing else is, so between a
private swarm and any other network no connection comes up: their DHTs cannot mix.
"""

from libp2p.crypto.keys import KeyPair
from libp2p.custom_types import TProtocol
from libp2p.security.noise.patterns import IPattern, PatternXX
from noise.connection import NoiseConnection

from dht.transport.libp2p_link import OpenLink
from dht.transport.libp2p_security import TunedNoise

PSK_PROTOCOL = TProtocol("/barnraise/noise-psk/1")
PSK_BYTES = 32

NOT_PRIVATE = "it is not in our private swarm: it takes no PSK"
PRIVATE = "it takes neither TLS nor Noise: a private swarm has a PSK, which its members give you"
OTHER_PSK = "it is in another private swarm: its PSK is not ours"
WRONG_KEY = frozenset({NOT_PRIVATE, PRIVATE, OTHER_PSK})
"""Why a handshake failed with a peer that is there."""


class _PatternXXpsk0(PatternXX):
    """The library's XX, which takes the order of the messages; the state adds the PSK."""

    psk = b""

    def create_noise_state(self, prologue: bytes | None = None) -> NoiseConnection:
        state: NoiseConnection = super().create_noise_state(prologue)
        state.set_psks(psk=self.psk)
        return state


class PskNoise(TunedNoise):
    """Noise for the members of one private swarm. `psk` has PSK_BYTES."""

    def __init__(self, key_pair: KeyPair, open_link: OpenLink, psk: bytes) -> None:
        super().__init__(key_pair, open_link)
        self._psk = psk

    def get_pattern(self) -> IPattern:
        """The handshake of one connection."""
        pattern = _PatternXXpsk0(self.local_peer, self.libp2p_privkey, self.noise_privkey)
        pattern.protocol_name = b"Noise_XXpsk0_25519_ChaChaPoly_SHA256"
        pattern.psk = self._psk
        return pattern

    def _why(self, error: Exception, *, is_ours: bool) -> str:
        """Most likely the other end has another PSK: nothing it says decrypts."""
        return OTHER_PSK if is_ours else f"no handshake with our PSK: {type(error).__name__}"
