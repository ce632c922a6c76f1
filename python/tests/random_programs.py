"""Random calls of every operation, alone and in random programs.

In a program, all ranks make the same asynchronous calls. Each rank submits the calls in an order of
its own, and waits for them in another order of its own. Each seed gives another program.
"""

from __future__ import annotations

import random
from typing import Any

from reference import OPERATIONS, Call, random_call
from suite import Form, Suite, forms_of, needs_async

PROGRAMS, CALLS = 12, 40


class RandomPrograms(Suite):
    def check_random_calls_in_every_form(self) -> None:
        for operation in OPERATIONS.values():
            for number, dtype in enumerate(self.frontend.dtypes):
                for group, form in self.groups_and_forms(operation.name, number):
                    seed = f"{operation.name} {dtype} {group.process_set_id} {form}"
                    generator = random.Random(seed)  # so that all members draw the same call
                    call = random_call(generator, operation, dtype, 3, group.size())
                    results = self.run(
                        operation.name,
                        form,
                        self.tensors(call, group),
                        process_set=group,
                        **self.options(call, group, form),
                    )
                    self.expect_results(call, group, results)

    @needs_async
    def check_random_programs(self) -> None:
        for seed in range(PROGRAMS):
            try:
                self.run_program(seed)
            except BaseException:
                print(f"the random program with seed {seed} has failed", flush=True)
                raise

    def run_program(self, seed: int) -> None:
        groups = [self.api.global_process_set, *self.groups]
        generator = random.Random(seed)
        program = [self.random_start(generator, number, groups) for number in range(CALLS)]
        own_calls = [drawn for drawn in program if drawn[2].included()]
        own_order = random.Random(1000 * seed + self.rank)
        own_order.shuffle(own_calls)
        started = [(*drawn, self.start(*drawn)) for drawn in own_calls]
        own_order.shuffle(started)
        for _, call, group, form, handle in started:
            result = self.api.synchronize(handle)
            self.expect_results(call, group, result if form.grouped else [result])

    def random_start(
        self, generator: random.Random, number: int, groups: list[Any]
    ) -> tuple[str, Call, Any, Form]:
        operation = generator.choice(list(OPERATIONS.values()))
        forms = forms_of(operation.name, self.frontend)
        form = generator.choice([form for form in forms if form.asynchronous])
        group = generator.choice(groups)
        tensors = generator.randint(1, 4) if form.grouped else 1
        dtype = generator.choice(self.frontend.dtypes)
        call = random_call(generator, operation, dtype, tensors, group.size())
        return f"call.{number}", call, group, form

    def start(self, name: str, call: Call, group: Any, form: Form) -> Any:
        tensors = self.tensors(call, group)
        function = getattr(self.api, form.name(call.operation.name))
        argument = tensors if form.grouped else tensors[0]
        return function(argument, name=name, process_set=group, **self.options(call, group, form))

    def tensors(self, call: Call, group: Any) -> list[Any]:
        shapes = call.member_shapes(group.rank())
        return [self.tensor(shape, call.dtype, call.seed) for shape in shapes]

    def options(self, call: Call, group: Any, form: Form) -> dict[str, Any]:
        options = call.operation.options(call, self.api, group.rank(), group.ranks)
        if form.grouped and "splits" in options:
            options["splits"] = [options["splits"]] * len(call.shapes)
        return options

    def expect_results(self, call: Call, group: Any, results: list[Any]) -> None:
        expected = call.expected(group.rank(), group.ranks)
        for result, array in zip(results, expected, strict=True):
            tensor = result[0] if call.operation.returns_rows else result
            self.expect(
                tensor,
                array,
                call.dtype,
                is_exact=False,
                absolute_tolerance=call.absolute_tolerance,
            )
