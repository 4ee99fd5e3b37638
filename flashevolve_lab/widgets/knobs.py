"""Settings as ipywidgets: what asks for a value, and beside it the value in force as the log has it.

Owns a `Knob` for each kind of setting. Owns no commands (`controls` sends what a knob asks for). One rule a change must keep: a
knob shows as in force only what came back from the log; what was asked for is "pending" until then, and what was refused says why.
Traits may be set by the poller's thread while a user's callback runs on another: what a thread sets itself, it does not hear.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import ipywidgets as ipw

from flashevolve_lab.views import worded
from flashevolve_lab.widgets.texts import one_line, sayable

BRIEF = 60  # characters of a setting where there is room for a few words only
Ask = Callable[[str, Any], None]


def said(text: str = "") -> ipw.Label:
    """A line of plain text that no typesetter touches (a `Label` shows its value as text, never as markup)."""
    label = ipw.Label(text, layout=ipw.Layout(height="auto", min_height="0", max_width="100%"))
    for name in ("fl-said", "mathjax_ignore", "tex2jax_ignore"):
        label.add_class(name)
    return label


def plainly(value: Any) -> str:
    """A recorded setting in words, without the hash of a user's code."""
    if isinstance(value, Mapping):
        value = {name: part for name, part in value.items() if name != "code"}
    return sayable(worded(value))


class Knob:
    """One setting: ``widget`` to show; ``name`` as ``commands.set`` knows it."""

    def __init__(self, name: str, title: str, rows: Sequence[ipw.Widget]) -> None:
        self.name, self.title = name, title
        self.line = said()
        heading = ipw.Label(title)
        heading.add_class("fl-knob-title")
        self.widget = ipw.VBox([heading, *rows, self.line])
        self.widget.add_class("fl-knob")
        self.widget.add_class(f"fl-knob-{name}")
        self._hearing_not: set[int] = set()
        self._in_force = ""
        self._value: Any = None
        self._asked: Any = None

    def __repr__(self) -> str:
        return f"<Knob {self.name}: {self.line.value}>"

    def inputs(self) -> Iterator[ipw.Widget]:
        """The widgets that are disabled when nothing can be changed."""
        return iter(())

    def follow(self, value: Any) -> None:
        """Let the inputs show a value that came from the log."""

    def brief(self) -> str:
        """What is in force, in a few words; "" where nothing need be said."""
        return ""

    @property
    def usual(self) -> bool:
        """Whether what is in force is what a run has that was not told otherwise."""
        return True

    def effective(self, value: Any, since: str) -> None:
        """The log says that this value is in force."""
        self._value, self._in_force = value, f"{plainly(value)} {since}"
        if self._asked is None or self._asked == value:
            self._asked = None
            with self.unheard():
                self.follow(value)
            self.line.value = f"in force: {self._in_force}"
        else:
            self.line.value = f"pending: {plainly(self._asked)} (in force: {self._in_force})"

    def pending(self, recorded: Any) -> bool:
        """This value is wanted; whether that is news: neither in force nor asked for already."""
        if recorded == (self._value if self._asked is None else self._asked):
            self.line.value = f"in force: {self._in_force}" if self._asked is None else self.line.value
            return False
        self._asked = recorded
        self.line.value = f"pending: {plainly(recorded)} (in force: {self._in_force})"
        return True

    def refused(self, message: str) -> None:
        """What was asked for cannot be."""
        self._asked = None
        message = sayable(message)
        self.line.value = f"not changed: {message} (in force: {self._in_force})"

    def enable(self, able: bool) -> None:
        """Allow changes, or not."""
        for widget in self.inputs():
            if widget.disabled == able:
                widget.disabled = not able

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """What this thread sets inside is not taken for a user's act."""
        me = threading.get_ident()
        self._hearing_not.add(me)
        try:
            yield
        finally:
            self._hearing_not.discard(me)

    def heard(self) -> bool:
        """Whether a change came from a user."""
        return threading.get_ident() not in self._hearing_not


class PolicyKnob(Knob):
    """A choice among policy classes, with an input for each of their fields.

    Args:
        name, title: Of the setting.
        classes: To choose from; more by `offer`.
        ask: Called with the name and the policy when a user changes something.
    """

    def __init__(self, name: str, title: str, classes: Sequence[type], ask: Ask) -> None:
        self._ask = ask
        self._classes: dict[str, type] = {}
        self._models: dict[str, Any] = {}  # class name → a policy of it, for what no input shows
        self._inputs: dict[str, dict[str, ipw.Widget]] = {}
        self._unsaid: dict[str, frozenset[str]] = {}  # class name → fields that mean nothing beside the others' values
        self.choice = ipw.ToggleButtons(options=[], tooltips=[], style={"button_width": "auto"})
        self.fields = ipw.HBox([], layout=_WRAP)
        self.fields.add_class("fl-fields")
        super().__init__(name, title, [self.choice, self.fields])
        self.choice.add_class("fl-choices")
        self.choice.observe(self._chosen, "value")
        for cls in classes:
            self.offer(cls)

    def inputs(self) -> Iterator[ipw.Widget]:
        """The choice and every field."""
        yield self.choice
        for row in list(self._inputs.values()):
            yield from row.values()

    def offer(self, cls: type, model: Any = None) -> None:
        """Add a class to the choice; ``model``: a policy of it, which later ones copy what no input shows from."""
        if model is not None:
            self._models[cls.__name__] = model
        if self._classes.get(cls.__name__) is cls:
            return
        self._classes[cls.__name__] = cls
        self._inputs[cls.__name__] = _inputs_of(cls, self._models.get(cls.__name__), self._edited)
        first_lines = [(c.__doc__ or "").strip().split("\n")[0] for c in self._classes.values()]
        with self.unheard():
            chosen = self.choice.value
            self.choice.options = list(self._classes)
            self.choice.tooltips = first_lines
            self.choice.value = chosen
            self._show_fields()

    def follow(self, value: Any) -> None:
        """Choose the class of the recorded policy and show its fields."""
        name = value.get("name", "") if isinstance(value, Mapping) else ""
        self.choice.value = name if name in self._classes else None
        for field, widget in self._inputs.get(name, {}).items():
            if field in value and _value_of(widget) != value[field]:
                widget.value = str(value[field]) if isinstance(widget, ipw.Combobox) else value[field]
        self._show_fields()

    def brief(self) -> str:
        """The class, and those of its fields that are not as usual: ``"Complete, proven front"``."""
        if not isinstance(self._value, Mapping):
            return ""
        name = str(self._value.get("name", ""))
        cls = self._classes.get(name)
        usual = {field.name: _default(field) for field in fields(cls)} if is_dataclass(cls) else {}
        told = {field: part for field, part in self._value.items() if field not in ("name", "code")}
        odd = [f"{field} {part or 'never'}" for field, part in told.items() if field not in usual or usual[field] != part]
        return one_line(", ".join([name, *odd]), BRIEF)

    @property
    def usual(self) -> bool:
        """Whether it is the first class of the menu, with all its fields as usual."""
        return self.brief() in ("", next(iter(self._classes), ""))

    def policy(self) -> Any:
        """The policy that the inputs describe; raises whatever its class raises."""
        name = self.choice.value
        cls, model = self._classes[name], self._models.get(name)
        values = {field: _value_of(widget) for field, widget in self._inputs[name].items()}
        if model is None:
            return cls(**values)
        return replace(model, **values) if values else model

    def _chosen(self, _: Any) -> None:
        if self.heard() and self.choice.value is not None:
            self._show_fields()
            self._send()

    def _edited(self, _: Any) -> None:
        if self.heard():
            self._show_fields()
            self._send()

    def _send(self) -> None:
        try:
            policy = self.policy()
        except Exception as error:  # a user's class may raise anything
            self.refused(str(error) or type(error).__name__)
            return
        self._ask(self.name, policy)

    def _show_fields(self) -> None:
        name = self.choice.value or ""
        row = self._inputs.get(name, {})
        if hasattr(self._classes.get(name), "unsaid"):
            with suppress(Exception):  # while the values make no policy, what was shown stays
                self._unsaid[name] = frozenset(self.policy().unsaid)
        unsaid = self._unsaid.get(name, frozenset())
        shown = tuple(widget for field, widget in row.items() if field not in unsaid)
        if self.fields.children != shown:
            self.fields.children = shown


class NumberKnob(Knob):
    """A whole number of at least 1. ``label``: before its input; ``unit``: what it counts."""

    def __init__(self, name: str, title: str, label: str, unit: str, ask: Ask) -> None:
        self._ask, self._unit = ask, unit
        self.number = ipw.BoundedIntText(min=1, max=1_000_000, description=label, layout=_FITTING, style=_LABEL)
        super().__init__(name, title, [self.number])
        self.number.observe(self._edited, "value")

    def inputs(self) -> Iterator[ipw.Widget]:
        """The number."""
        yield self.number

    def follow(self, value: Any) -> None:
        """Show it."""
        self.number.value = int(value)

    def brief(self) -> str:
        """The number in words."""
        return "" if self._value is None else f"up to {int(self._value):,} {self._unit}"

    def _edited(self, change: Any) -> None:
        if self.heard():
            self._ask(self.name, change["new"])


class SlotsKnob(Knob):
    """Worker slots by stage; 0: as many as the schedule's depth."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._numbers: dict[str, ipw.BoundedIntText] = {}
        self.row = ipw.HBox([], layout=_WRAP)
        self.row.add_class("fl-fields")
        super().__init__("slots", "Worker slots (0: no limit but the schedule)", [self.row])

    def inputs(self) -> Iterator[ipw.Widget]:
        """A number for each stage."""
        return iter(list(self._numbers.values()))

    def stages(self, names: Sequence[str]) -> None:
        """The stages there are."""
        for name in names:
            number = ipw.BoundedIntText(min=0, max=10_000, description=name, layout=_FITTING, style=_LABEL)
            number.observe(self._edited, "value")
            self._numbers[name] = number
        self.row.children = tuple(self._numbers.values())

    def follow(self, value: Any) -> None:
        """Show them."""
        for name, number in self._numbers.items():
            number.value = int((value or {}).get(name, 0))

    def effective(self, value: Any, since: str) -> None:
        """In force; no setting at all is said in words."""
        super().effective(value, since)
        if not value:
            self.line.value = f"in force: as many as proposals in flight, {since}"

    def brief(self) -> str:
        """The stages that have a number."""
        return one_line("slots " + ", ".join(f"{stage} {n}" for stage, n in self._value.items()), BRIEF) if self._value else ""

    @property
    def usual(self) -> bool:
        """Whether no stage has a number."""
        return not self._value

    def _edited(self, _: Any) -> None:
        if self.heard():
            self._ask(self.name, {name: number.value for name, number in self._numbers.items() if number.value})


class BudgetKnob(Knob):
    """More of one dimension of the budget."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._limits: dict[str, float] = {}
        self.dimension = ipw.Dropdown(options=[], description="more", layout=_FITTING, style=_LABEL)
        self.amount = ipw.BoundedFloatText(value=100, min=0, max=1e15, description="by", layout=_FITTING, style=_LABEL)
        self.button = ipw.Button(description="Extend", icon="plus", layout=ipw.Layout(width="auto"))
        self.button.tooltip = "Extend the budget by this amount"
        row = ipw.HBox([self.dimension, self.amount, self.button], layout=_WRAP)
        row.add_class("fl-fields")
        super().__init__("budget", "Budget", [row])
        self.button.on_click(self._clicked)

    def inputs(self) -> Iterator[ipw.Widget]:
        """Dimension, amount and button."""
        return iter((self.dimension, self.amount, self.button))

    def follow(self, value: Any) -> None:
        """Offer the dimensions that have a limit."""
        self._limits = {name: float(limit) for name, limit in value.items()}
        if tuple(self.dimension.options) != tuple(self._limits):
            self.dimension.options = tuple(self._limits)
            self.dimension.value = next(iter(self._limits), None)
            self.amount.value = max(1.0, round(next(iter(self._limits.values()), 1000.0) / 10))

    def extended(self) -> dict[str, float]:
        """The limits that the inputs describe."""
        name, more = self.dimension.value, self.amount.value
        limit = self._limits[name] + more
        whole = name not in ("dollars", "seconds")
        return {**self._limits, name: int(limit) if whole else limit}

    def _clicked(self, _: Any) -> None:
        if self.dimension.value is not None and self.amount.value > 0:
            self._ask(self.name, self.extended())


_FITTING = ipw.Layout(width="auto")  # the width of an input is in overview.css
_WRAP = ipw.Layout(flex_flow="row wrap")
_LABEL = {"description_width": "initial"}


def _inputs_of(cls: type, model: Any, edited: Callable[[Any], None]) -> dict[str, ipw.Widget]:
    """An input for each field of a policy class that has a plain type and a value to start from."""
    if not is_dataclass(cls):
        return {}
    hints = _hints(cls)
    found = {}
    for field in fields(cls):
        widget = _input(field, hints.get(field.name), getattr(model, field.name, _default(field))) if field.init else None
        if widget is not None:
            widget.observe(edited, "value")
            found[field.name] = widget
    return found


def _input(field: Field[Any], hint: Any, value: Any) -> ipw.Widget | None:
    given = {"description": field.name, "style": _LABEL, "layout": _FITTING}
    words = [word for part in get_args(hint) if get_origin(part) is Literal for word in get_args(part)]
    if words and all(isinstance(word, str) for word in words) and int in get_args(hint):  # a number, or one of some words
        given["placeholder"] = f"a number, or {' or '.join(words)}"
        return ipw.Combobox(value=str(value), options=words, ensure_option=False, continuous_update=False, **given)
    if get_origin(hint) is Literal:
        return ipw.Dropdown(options=[(word or "never", word) for word in get_args(hint)], value=value, **given)  # "" shows as nothing
    match value:
        case bool():
            return ipw.Checkbox(value=value, indent=False, **given)
        case int():
            return ipw.IntText(value=value, **given)
        case float():
            return ipw.FloatText(value=value, **given)
        case str():
            return ipw.Text(value=value, continuous_update=False, **given)
        case _:
            return None


def _value_of(widget: ipw.Widget) -> Any:
    """What an input says; in one for a number or a word, digits are the number."""
    value = widget.value
    return int(value) if isinstance(widget, ipw.Combobox) and value.strip().isdecimal() else value


def _hints(cls: type) -> dict[str, Any]:
    try:
        return get_type_hints(cls)
    except Exception:  # an annotation of a notebook cell may name anything
        return {}


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else None
