"""Every public name of the packages named in the arguments; prints of each stand-in what using it says."""

import importlib
import sys

from accelera._extras import EXTRAS, _StandIn, is_installed, is_there

assert not any(is_there(module) for modules in EXTRAS.values() for module in modules)
assert not any(map(is_installed, EXTRAS))
for package in sys.argv[1:]:
    module = importlib.import_module(package)
    exec(f"from {package} import *", {})
    for name in dir(module):
        value = getattr(module, name)
        assert repr(value)
        hasattr(value, "__wrapped__")  # as inspect and help ask
        if isinstance(value, _StandIn):
            assert value.__doc__
            assert not isinstance(3, value)
            for use in (value, lambda value=value: value.anything):
                try:
                    use()
                except ImportError as error:
                    print(name, "|", error)
                else:
                    raise AssertionError(name)
