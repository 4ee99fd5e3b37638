"""The log on disk."""

from flashevolve_lab.store.sqlite import FORMAT, Reader, Writer, files

__all__ = ["FORMAT", "Reader", "Writer", "files"]
