"""Methods by name: the built-in ones, those registered, those of installed packages, and those in a file."""

from consilience.methods import builtin as _builtin  # registers the built-in methods
from consilience.methods.build import build_method, override_settings, settings_as_text, settings_of
from consilience.methods.registry import METHODS, method_names, register_method

__all__ = [
    "METHODS",
    "build_method",
    "method_names",
    "override_settings",
    "register_method",
    "settings_as_text",
    "settings_of",
]
assert set(_builtin.BUILT_IN) <= set(METHODS)
