"""The settings of a job as one object. `horovod.run` takes them as arguments instead."""

from __future__ import annotations

from typing import Any


class BaseSettings:
    """Keep settings as attributes."""

    # size waiver: Horovod's arguments
    def __init__(
        self,
        num_proc: int | None = None,
        verbose: int = 0,
        ssh_port: int | None = None,
        ssh_identity_file: str | None = None,
        extra_mpi_args: str | None = None,
        tcp_flag: bool | None = None,
        binding_args: str | None = None,
        key: bytes | None = None,
        start_timeout: Any = None,
        output_filename: str | None = None,
        run_func_mode: bool | None = None,
        nics: Any = None,
        elastic: bool = False,
        prefix_output_with_timestamp: bool = False,
    ) -> None:
        given_settings = dict(locals())
        del given_settings["self"]
        self.__dict__.update(given_settings)


class Settings(BaseSettings):
    """Also keep the hosts, in the form "host1:2,host2:4"."""

    def __init__(self, hosts: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hosts = hosts
