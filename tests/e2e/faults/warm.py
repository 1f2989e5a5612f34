"""Imported where victims are forked, so that they live and die quickly."""

from .victim import warm_up

warm_up()
