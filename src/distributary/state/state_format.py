"""The format of a state folder: a number that a release writes down at its first start, and looks at ever after.

A release goes on with the state of every release before it. It does not touch one whose number is higher than its own:
what a newer release has written it would read wrong, or leave out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from distributary.config import Pipeline, StateFolder
from distributary.errors import StateNewer, StoreUnreadable
from distributary.tables.by_name import is_named
from distributary.tables.faults import reading, writing
from distributary.tables.files import names_in
from distributary.tables.put_once import cannot_put_once
from distributary.tables.put_proof import prove_puts_once
from distributary.tables.store import Store
from distributary.version import __version__

FORMAT = 1
"""Goes up when a release before could no longer go on with the state that this one writes."""
BEFORE = 0
"""Of state that no release has numbered; 1 can go on with it as it is."""


def check_format(config: Pipeline, store: Store) -> int:
    """The number of the whole pipeline's state, also for one of its streams. Raises StateNewer, StoreUnreadable."""
    state, name = config.whole_state, StateFolder.format.name
    with reading(state):
        body = store.get(state, name)
    if body is None:
        return BEFORE
    try:
        content = json.loads(body)
        number, release = int(content["format"]), str(content["release"])
    except (ValueError, KeyError, TypeError) as e:
        detail = f"{name} does not say which format the state has. Remove that one file: the next run writes it anew"
        raise StoreUnreadable(path=state, detail=detail) from e
    if number > FORMAT:
        about = {"pipeline": config.pipeline, "state": state, "found": number, "release": release}
        raise StateNewer(**about, known=FORMAT, own=__version__)
    return number


def has_state(config: Pipeline) -> bool:
    """Is anything in the state folder? True where nobody can say: the run itself finds out why."""
    try:
        return bool(names_in(config.state_root, Store.of(config.tables)))
    except (OSError, ValueError):
        return True


def prove_new(state: str, others: Iterable[str], store: Store) -> None:
    """Where nothing was written yet, try whether the places can put once. Raises StoreUnfit, StoreDown."""
    with writing(state):
        if StateFolder.ledger.name in names_in(state, store):
            return
    for uri in (state, *(uri for uri in others if not state.startswith(f"{uri}/"))):
        if not is_named(uri) and cannot_put_once(uri, store) is None:
            with writing(uri):
                prove_puts_once(uri, store)


def claim_format(config: Pipeline, store: Store) -> None:
    """Before the state is written: number it, where it has none or an older one. Places that have no number and no
    ledger are new: they are tried first.

    Raises StateNewer, StoreUnreadable, StoreDown, StoreUnfit.
    """
    if check_format(config, store) == FORMAT:
        return
    # Spark commits its own tables in its own way.
    tables = () if config.tables.engine == "spark" else (config.tables.root,)
    prove_new(config.whole_state, tables, store)
    content = json.dumps({"format": FORMAT, "release": __version__}).encode()
    with writing(config.whole_state):
        store.put_whole(config.whole_state, StateFolder.format.name, content)
