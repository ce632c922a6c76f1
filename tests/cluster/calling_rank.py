"""A rank that mpirun starts without `farandole run`. It joins the job, prints "waits", and makes
calls until it is killed."""

from __future__ import annotations

import os

from small_worker import make_few_calls

import farandole

farandole.init()
os.write(1, b"waits\n")  # one write, because several ranks write to one pipe
while True:
    make_few_calls()
