"""Sessions of sources that have covariates of groups."""

from __future__ import annotations

from typing import Any

from calibscale.data.groups import grouped, listed_groups
from calibscale.session import Session


def by_group(
    session: Session, grouping: str | None, cut: bool = False
) -> tuple[Session, str | None]:
    """Session of a source with a covariate of groups, and its name, see `grouped`."""
    if grouping is None:
        return session, None
    source, column = grouped(session.source, grouping, session.execution.scheduler, cut)
    return (session if source is session.source else session.on(source)), column


def by_groups(session: Session, group_by: Any) -> tuple[Session, list[str]]:
    """Session with covariates of groups, and their names.  Numbers with many values are cut."""
    columns = []
    for grouping in listed_groups(group_by):
        session, column = by_group(session, grouping, cut=True)
        columns.append(str(column))
    return session, columns
