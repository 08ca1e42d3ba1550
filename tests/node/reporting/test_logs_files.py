"""The file of the log: rotation, a full disk, a console that is gone, bugs."""

import errno
import io
import logging
import os
import sys
from pathlib import Path

import pytest

from node.reporting.logs import (
    FILE_BYTES_MAX,
    FILES_KEPT,
    LOG_FILE,
    JsonFormatter,
    Logs,
    NodeLogFile,
    TextFormatter,
    start_logging,
)
from protocol.errors import ConfigError
from tests.node.log_lines import lines, told

logger = logging.getLogger("node.on_trial")


def test_files_rotate_within_their_bound(tmp_path: Path) -> None:
    log = NodeLogFile(tmp_path / LOG_FILE)
    assert (log.maxBytes, log.backupCount) == (4 * 1024 * 1024, 4)
    assert FILE_BYTES_MAX * FILES_KEPT == 20 * 1024 * 1024
    log.maxBytes = 1000
    log.setFormatter(TextFormatter(is_short=True))
    for index in range(200):
        log.handle(logging.makeLogRecord({"msg": f"{index:090d}", "levelno": logging.INFO}))
    log.close()
    names = sorted(os.listdir(tmp_path))
    assert names == [LOG_FILE, *(f"{LOG_FILE}.{index}" for index in range(1, 5))]
    assert all((tmp_path / name).stat().st_size <= 1000 for name in names)
    assert f"{199:090d}" in (tmp_path / LOG_FILE).read_text()


def test_file_that_cannot_be_renamed_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = NodeLogFile(tmp_path / LOG_FILE)
    log.maxBytes = 100

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "somebody looks at it")

    monkeypatch.setattr(os, "rename", refuse)
    for index in range(20):
        log.handle(logging.makeLogRecord({"msg": f"line {index} {'x' * 50}"}))
    log.close()
    assert log.num_lost == 0
    assert len(lines(tmp_path)) == 20
    assert os.listdir(tmp_path) == [LOG_FILE]


def test_log_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    (tmp_path / LOG_FILE).mkdir()
    with pytest.raises(ConfigError, match=r"cannot write the log .*node\.log: "):
        start_logging(tmp_path, log_json=False, console=False)


class FullDisk(io.TextIOWrapper):
    """Takes the first half of what is written to it, then has no room."""

    def write(self, text: str) -> int:
        super().write(text[: len(text) // 2])
        super().flush()
        raise OSError(errno.ENOSPC, "No space left on device")


class FillingFile(NodeLogFile):
    """A log on a disk that is full while `is_full`."""

    is_full = False

    def _open(self) -> io.TextIOWrapper:
        if self.is_full:
            return FullDisk(open(self.baseFilename, "ab"), encoding="utf-8")
        return super()._open()

    def let_go(self) -> None:
        assert self.stream is not None
        self.stream.close()
        self.stream = None


def test_full_disk_costs_lines_and_not_the_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = FillingFile(tmp_path / LOG_FILE)
    log.setFormatter(TextFormatter(is_short=False))
    logs = Logs([log], logging.INFO)
    with logs:
        logger.info("before")
        log.is_full = True
        log.let_go()
        for _ in range(3):
            logger.info("lost")
        assert logs.num_lost == 3
        log.is_full = False
        logger.info("after")
        assert logs.num_lost == 0
        logger.info("later")
    assert capsys.readouterr().err == ""
    found = lines(tmp_path)
    assert found[0].endswith("INFO node.on_trial before")
    # What was torn has its line for itself: nothing that follows is torn with it.
    assert [line.split(" ", 2)[2] for line in found[-3:]] == [
        "INFO node.on_trial after",
        "WARNING node.reporting.logs log lines were lost count=3",
        "INFO node.on_trial later",
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /dev/full")
def test_really_full_device_is_survived(capsys: pytest.CaptureFixture[str]) -> None:
    log = NodeLogFile(Path("/dev/full"))
    for _ in range(100):
        log.handle(logging.makeLogRecord({"msg": "no room"}))
    assert log.num_lost == 100
    log.close()
    assert capsys.readouterr().err == ""


def test_console_that_is_gone_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", FullDisk(io.BytesIO()))
    with start_logging(tmp_path, log_json=False, console=True):
        logger.warning("heard in the file")
    assert len(lines(tmp_path)) == 1


@pytest.mark.parametrize("is_json", [False, True])
def test_bug_in_a_call_is_shown_and_survived(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_json: bool
) -> None:
    # By itself: pytest's own handler would raise.
    log = NodeLogFile(tmp_path / LOG_FILE)
    log.setFormatter(JsonFormatter() if is_json else TextFormatter(is_short=False))
    for values in [("x", 1), (1,), (1, 2, 3), (1, 2)]:
        record = {"name": "a", "msg": "round sealed round=%d listed=%d", "args": values}
        log.handle(logging.makeLogRecord(record))
    log.close()
    assert capsys.readouterr().err.count("--- Logging error ---") == 3
    assert log.num_lost == 0
    assert len(lines(tmp_path)) == 1


def test_bug_that_ends_the_process_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, _, __: shown.append(kind))
    with start_logging(tmp_path, log_json=False, console=False):
        for error in (ValueError("a bug"), KeyboardInterrupt()):
            sys.excepthook(type(error), error, None)
    assert shown == [ValueError, KeyboardInterrupt]
    assert told(tmp_path)[0] == "CRITICAL node.reporting.logs stopped by a bug"
    assert any("ValueError: a bug" in line for line in lines(tmp_path))
    assert not any("KeyboardInterrupt" in line for line in lines(tmp_path))
