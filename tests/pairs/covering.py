# SPDX-License-Identifier: Apache-2.0
"""Few Services in which every two values of two annotations meet."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from random import Random

Values = Mapping[str, Sequence[str]]
"""By annotation; "" for none."""
Meeting = tuple[tuple[str, str], tuple[str, str]]

_TRIES = 20


def covering(values: Values, seed: int) -> list[dict[str, str]]:
    """Of each Service the values; always the same ones."""
    chance = Random(seed)
    missing = dict.fromkeys(_meetings(values))
    found = []
    while missing:
        drawn = [_draw(values, missing, chance) for _ in range(_TRIES)]
        best = max(drawn, key=lambda each: sum(pair in missing for pair in met_by(each)))
        found.append(best)
        for pair in met_by(best):
            missing.pop(pair, None)
    return found


def met_by(service: Mapping[str, str]) -> list[Meeting]:
    """Which values meet in a Service."""
    return list(combinations(service.items(), 2))


def _meetings(values: Values) -> Iterator[Meeting]:
    for first, second in combinations(values, 2):
        for one in values[first]:
            yield from (((first, one), (second, other)) for other in values[second])


def _draw(values: Values, missing: Mapping[Meeting, None], chance: Random) -> dict[str, str]:
    """Two values that have not met, and by and by those that meet most others anew."""
    chosen = dict(chance.choice(list(missing)))
    names = [name for name in values if name not in chosen]
    chance.shuffle(names)
    for name in names:
        texts = chance.sample(values[name], len(values[name]))
        chosen[name] = max(texts, key=lambda text: _new(values, chosen, (name, text), missing))
    return {name: chosen[name] for name in values}


def _new(
    values: Values, chosen: Mapping[str, str], one: tuple[str, str], missing: Mapping[Meeting, None]
) -> int:
    order = list(values)
    return sum(
        tuple(sorted((one, other), key=lambda each: order.index(each[0]))) in missing
        for other in chosen.items()
    )
