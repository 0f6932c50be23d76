# SPDX-License-Identifier: Apache-2.0
"""Colours of the page, and the contrast between them."""

import json

from tests.ui.browser import Browser

Colour = list[int]


def colour(browser: Browser, selector: str, what: str) -> Colour:
    """Red, green and blue of a property of the first such element."""
    found = browser.run(f"getComputedStyle(document.querySelector({json.dumps(selector)})).{what}")
    return [int(part) for part in found.removeprefix("rgb(").removesuffix(")").split(",")]


def contrast(one: Colour, other: Colour) -> float:
    """As WCAG defines it."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(parts: Colour) -> float:
    lights = [part / 255 for part in parts]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in lights]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
