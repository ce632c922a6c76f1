"""A base class for loaders of batches, and a mixin that loads the batches in a thread."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any


class BaseDataLoader:
    """A loader whose subclass implements _iterate() and __len__()."""

    def __len__(self) -> int:
        """Return the number of batches."""
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        """Yield the batches of one epoch."""
        raise NotImplementedError

    def _process_batch(self, batch: Any) -> Any:
        """Return the batch as the training loop gets it. This method runs in the training loop's
        thread."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class _Epoch:
    """The batches of one epoch, loaded in a thread."""

    def __init__(self, batches: Iterator[Any], queue_size: int) -> None:
        # Each entry is a list and an error. The list has one batch, and the error is None. In the
        # last entry, the list is empty; the error is not None if loading has failed.
        self._entries: queue.Queue[tuple[list[Any], BaseException | None]] = queue.Queue(queue_size)
        self._is_closed = threading.Event()
        self._batches = batches
        self._thread = threading.Thread(target=self._load, name="horovod-data", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        while True:
            batch, error = self._entries.get()
            if error is not None:
                raise error
            if not batch:
                return
            yield batch[0]

    def close(self) -> None:
        """End the thread as soon as it has loaded its current batch."""
        self._is_closed.set()
        self._drop_entries()  # otherwise, a thread that waits at a full queue would never end
        self._thread.join()
        self._drop_entries()
        self._entries.put(([], None))  # ends a loop that waits in __iter__()

    def _drop_entries(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._entries.get_nowait()

    def _load(self) -> None:
        failure: BaseException | None = None
        try:
            for batch in self._batches:
                if self._is_closed.is_set():
                    return
                self._entries.put(([batch], None))
        except BaseException as error:  # __iter__() raises this error
            failure = error
        if not self._is_closed.is_set():  # after close(), __iter__() takes no more entries
            self._entries.put(([], failure))


class AsyncDataLoaderMixin:
    """Load batches in a thread, so that the training loop need not wait for them:

        class AsyncLoader(AsyncDataLoaderMixin, MyLoader): ...

    Name the mixin before the loader class, which must derive from BaseDataLoader. The thread ends
    at the end of the epoch, or when the training loop leaves the epoch before its end.

    Args:
        async_loader_queue_size: The largest number of loaded batches that wait for the training
            loop. 0: no thread.
        debug_data_loader: Ignored.
        args, kwargs: Arguments of the loader.
    """

    def __init__(
        self,
        async_loader_queue_size: int = 64,
        debug_data_loader: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self._epoch: _Epoch | None = None
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """End the thread that loads batches, if there is one."""
        if self._epoch is not None:
            self._epoch.close()
            self._epoch = None

    def __iter__(self) -> Iterator[Any]:
        loader: Any = super()
        if self.async_loader_queue_size <= 0:
            yield from loader.__iter__()
            return
        self.close_async_loader()
        epoch = self._epoch = _Epoch(loader._iterate(), self.async_loader_queue_size)
        try:
            for batch in epoch:
                yield loader._process_batch(batch)
        finally:
            epoch.close()
