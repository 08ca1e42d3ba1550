"""Every bound of the wire and of memory, with the arithmetic that gives it.

What arrives is measured against these before a byte of it is allocated or believed.
"""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def keep_newest(kept: dict[K, V], key: K, value: V, num_max: int) -> None:
    """File a value as the newest of at most so many; what was filed longest ago makes room."""
    kept.pop(key, None)  # Dicts keep the order in which keys came.
    kept[key] = value
    while len(kept) > num_max:
        del kept[next(iter(kept))]


KIB = 1024
MIB = 1024 * KIB

CHUNK_BYTES = 1 * MIB
"""One chunk. The best write size measured for a stream; a cell of 2^18 float32 is one.
"""

PIECE_BYTES_LEAST = 64
"""A taker answers pieces of no fewer bytes, with a byte each."""

PIECE_BYTES_MIN = 32 * KIB
PIECE_BYTES_MAX = 4 * (CHUNK_BYTES + 64 * KIB)
"""A cell travels in pieces, each of which its taker answers: on a line of 16 kB/s one every two
seconds, on a fast one one for four chunks, or for sixteen cells of 2^18 codes of 8 bits and their
scales. An answer is a step and a record at both ends, and what goes together is one header, one
check and one step."""

ITEMS_TOGETHER_MAX = 16
"""Cells of which all is one piece, and said at once."""

CELL_ELEMENTS_MIN = 1 << 10
CELL_ELEMENTS_MAX = 1 << 18
"""A cell never exceeds a chunk, so that what is verified on arrival is one bounded buffer."""

CELLS_MAX = 4096
"""Cells per fragment: 2^30 elements. The norms of a COMMIT, 9 bytes each, are 36 KiB; with all its
lists of 64 peers it is 47 KiB."""

CONTROL_FRAME_BYTES_MAX = 64 * KIB
"""One frame of a control stream. Every message and frame fits at its worst, which is tested; only
`Messages` is packed by its sender, by bytes."""

MESSAGE_BODY_BYTES_MAX = CONTROL_FRAME_BYTES_MAX - 1 * KIB
"""A body, so that it fits a frame with slot, sender, signature and the lists around: 221 bytes."""

NESTED_MESSAGE_BYTES_MAX = 512
"""A signed message inside another is a VOTE (at most 223 bytes) or a SEAL (at most 323)."""

PUZZLE_PIECES = 16
JOIN_WORK_BYTES = 64
"""The work of a SEAT: sixteen nonces of four bytes, checked with a hash each."""

PUZZLE_BITS_MIN = 5
PUZZLE_BITS_MAX = 30
"""2^22 hashes take 3 s in Python, 2^30 a quarter of an hour. A piece has four bits less, so that
its nonce never runs out of four bytes."""

RAMP_ROUNDS_MAX = 1000
"""Rounds of probation, and of the ramp behind it."""

CELL_NORM_MAX = 1e30
"""L2 norm of a cell. Training diverged long before, and sums of squares stay finite in float64."""

HAVE_RUNS_MAX = 3072
"""Runs of cells in one HAVE: 17 bytes each, 51 KiB. Whoever holds more runs says less."""

WANT_CELLS_MAX = 12_288
"""Cells of one Want or bulk stream: the state of 4096 cells with two outer slots; a bit each, 1.5
KiB. Who wants more asks again."""

NESTING_MAX = 8
"""Arrays within arrays. Types nest 7 deep (Chain, manifest); the decoder never goes deeper."""

LIST_ITEMS_MAX = 4096
STRING_BYTES_MAX = 1 * KIB

BULK_HEADER_BYTES_MAX = 64
"""Kind, subject, round, number of items: 48 bytes."""

PROOF_NODES_MAX = 32
"""Of a cell; 14 for 12 288 state cells."""

BULK_ITEMS_HEADER_BYTES_MAX = 17 * KIB
"""Of 16 cells index, length and a Merkle proof of at most 32 nodes of 32 bytes."""

TEXT_BLOCKS_MAX = 1 << 20
"""Blocks of a run's text: a TiB in blocks of a MiB. A proof has at most 20 nodes."""

TEXT_BLOCK_BYTES_MAX = CHUNK_BYTES
TEXT_BLOCKS_ASKED_MAX = 16
"""Blocks that one stream asks for: 16 MiB at most, or a MiB in blocks of 64 KiB."""

TEXT_WANT_BYTES_MAX = 128
TEXT_HEADER_BYTES_MAX = 1088
"""The first frame of such a stream has a root and 16 numbers, 118 bytes; the one before each block
its number, its length and a proof of at most 32 nodes of 32 bytes."""

TEXT_MEMBERS_MAX = 256
"""Members among whom the blocks of a text are placed, and whose announcements are kept."""

TEXT_RUNS_BYTES_MAX = 1 * KIB
TEXT_HOT_MAX = 8
"""Of an announcement: 512 runs of blocks that are held, if they are short; and blocks much asked
for. Whoever holds more runs says how many blocks it holds."""

MANIFEST_BYTES_MAX = 256 * KIB
MODEL_FILE_BYTES_MAX = 1 * MIB
"""A model file is read whole before its digest is compared. The longest models are some 100 KiB."""

TENSORS_MAX = 16_384
"""About what a manifest can hold: a tensor takes 16 bytes or more (a name of two, dtype, index)."""

SHARDS_MAX = 4096
FRAGMENTS_MAX = 1024

SEATS_MAX = 64
"""Seats of one replica group; a LIST, a certificate and a roster have at most as many items."""

SHARDS_WORKED_MAX = 16
"""Of so many shards a heartbeat tells how far its sender is."""

PHASE_S_MAX = 86_400
"""A phase of a round that is announced to take longer is announced as this long."""

RATE_LEVEL_MAX = 254
"""A measured rate in a byte of a COMMIT: quarters of an octave, up to 2^63 bytes per second."""

SEAL_WINDOW = 4
"""Non-empty rounds in which a voter must have shown a correct SEAL (R1)."""

SET_BACKS_MAX = 8
"""So often in a row a peer that keeps others waiting is set back for twice as long (R8)."""

ATTEMPTS_MAX = 1 << 16
ROUNDS_MAX = 1 << 22
TOKENS_PER_ROUND_MAX = 1 << 34
STEPS_PER_ROUND_MAX = 1 << 31
"""Of one contribution. A seal sums them: 64 seats x 2^22 rounds x 2^34 tokens are 2^62, 2^22 rounds
of 2^31 steps are 2^53, so no claim of a peer can make a seal that nobody can encode."""

LEASE_INTERVALS_MAX = 256
"""Unused lease intervals that a seal carries; beyond it the shortest are forgotten."""

MESSAGES_PER_ROUND_MAX = 4096
"""Signed messages that are kept for one round: 64 seats x 8 kinds x 8 attempts."""

MESSAGES_SHARED_MAX = 1024
"""Of them, what is for whoever says more than others; the rest is the members' own, each the same:
48 of 64 members."""

SEATS_ASKED_MAX = 512
"""Of those that are shared, and of those that come early: SEATs, whose senders nobody knows."""

MEMBER_BYTES_PER_ROUND_MAX = 1 * MIB
"""Of one member's messages that are kept for one round: the longest COMMIT, eight of the longest
HAVEs and NEWATTEMPTs, and the GRAMs of 22 slices of one LIST of 64. What is shared has as much."""

EARLY_BYTES_MAX = 128 * KIB
"""Of one member's messages of a round that is not open here: its longest COMMIT, its longest HAVE,
and some of the others."""

CHAIN_PAGE_SEALS = 256
"""Seals sent per request: a quarter of what a peer's queue of frames holds."""

RESULT_ROUNDS_KEPT = 16
"""Encoded results of so many final rounds stay with every peer, for those who step through them. A
joiner whose fetch takes ten rounds has time to begin with the first of the ten before it goes."""

CHAIN_SEALS_PER_FRAME_MAX = 1
"""A seal of 64 seats with its certificate takes 36 KiB: two fit no control frame."""

BRANCH_ROUNDS_MAX = 256
"""Provisional seals behind a final one (R4): what a peer is sent at once, like a page of the chain.
Their results lie on the disk until they are final; a longer branch waits for its quorum."""

ADDRESSES_PER_PEER_MAX = 16
ADDRESS_BYTES_MAX = 256

CHANNEL_FRAME_BYTES_MAX = 1 * MIB
"""One control frame between network process and trainer: 4096 cells of lengths and norms."""

DHT_FRAME_BYTES_MAX = 64 * KIB
DHT_RECORD_BYTES_MAX = 4 * KIB
DHT_WRITERS_PER_KEY_MAX = 256
DHT_KEYS_MAX = 65_536
DHT_RECORD_LIFETIME_S_MAX = 24 * 3600.0
DHT_CONTACTS_PER_REPLY_MAX = 16
DHT_ADDRESSES_PER_CONTACT_MAX = 8
DHT_VALUE_BYTES_MAX = DHT_RECORD_BYTES_MAX - 192
"""A record's other fields take at most 165 bytes: two ids of 34, a signature of 66, two numbers."""

DHT_REPLY_RECORDS_BYTES_MAX = 28 * KIB
"""What the 34 KiB of 16 contacts with 8 addresses each, and our own 2 KiB, leave of a frame."""

DHT_PAGES_MAX = 48
"""Replies in which a node lists one key: 256 records of 4 KiB, over 24 KiB filled in each, are 43.
"""

DHT_STORE_BYTES_MAX = 32 * MIB
DHT_KEYS_PER_WRITER_MAX = 2048
DHT_RECORDS_PER_COURIER_MAX = 64
"""Records of other writers that one peer may have us keep. Keys of writers cost nothing to make,
connections do: whoever floods needs one for every 64 of them."""

DHT_CLOCK_SKEW_S = 60.0
DHT_PINGS_MAX = 64
DHT_STREAMS_PER_PEER_MAX = 8
DHT_STREAMS_MAX = 512

ENTRY_BYTES_MAX = 16 * KIB
"""One entry of the replicated state, or one piece of evidence: three fit a control frame."""

ENTRY_BODY_BYTES_MAX = ENTRY_BYTES_MAX - 512
"""An entry's other fields take at most 305 bytes."""

EVIDENCE_MAX = 4096
STATEMENT_BYTES_MAX = 2 * KIB
"""Evidence that is held, and one of the two statements in it: a fork takes some 700 bytes, two
messages as much, whatever is in them: of their bodies it has the digests."""

EVIDENCE_BYTES_MAX = 16 * KIB
WRONG_SUMS_MAX = 128
"""A wrong sum is shown by the seal that names the voters and by the words of a third of them: some
3 KiB with 16 seats, 11 with 64. Only so many are held: whoever likes can make some against keys of
its own."""

EVIDENCE_PROOF_BYTES_MAX = MIB + 256 * KIB
"""A proof that is fetched as content: a leaf of 16 KiB with its path, of every cell of a slice."""

ENTRY_ADDRESSES_MAX = 8
ENTRY_ADDRESS_BYTES_MAX = 192
"""A relayed address names two peers and takes 160 bytes."""

STATE_ROWS_MAX = 150_000
"""Of the replicated state on disk: 117,248 entries of all kinds, and the evidence."""

STATE_FILE_BYTES_MAX = 256 * MIB
"""The bytes of all of them with SQLite's pages, which are half full at worst, and ids and sums."""

GOSSIP_BUCKETS = 256
BUCKET_DIGEST_BYTES = 16
"""Of a bucket's digest: who writes entries so that two sets look alike needs 2^64 tries."""

GOSSIP_IDS_MAX = 1024
"""Ids in one frame: 34 bytes each, 34 KiB."""

GOSSIP_EXCHANGE_BYTES_MAX = 1 * MIB
"""Ids and entries that one side sends in one exchange; the next exchange goes on."""

INCARNATION_MAX = 2**40
RUMOURS_PER_FRAME_MAX = 8
INTRODUCTIONS_PER_FRAME_MAX = 16
INTRODUCTION_AGE_S_MAX = 3600
GOSSIP_ADDRESSES_MAX = 4
GOSSIP_ADDRESS_BYTES_MAX = 192
"""As of an entry (`ENTRY_ADDRESS_BYTES_MAX`). 16 introductions of 4 are 13 KiB."""

PARTIAL_VIEW_MAX = 256
"""Peers that a node keeps in mind, besides the seated."""

SEGMENTS_MAX = 64
"""Of a round, for audits: each is a root of 32 bytes in every COMMIT, and a state on the disk."""

VERDICTS_PER_ROUND_MAX = 64
"""Of one voter on one audited round that are held: as many as there are seats."""

RETRACT_ROUNDS = 100
"""A second RETRACT within so many rounds is evidence: honest machines err, but not so often."""
