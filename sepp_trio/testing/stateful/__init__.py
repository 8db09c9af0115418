"""A Hypothesis state machine that looks for the story in which a handler goes wrong; needs
Hypothesis."""

from ._machine import HandlerMachine as HandlerMachine
