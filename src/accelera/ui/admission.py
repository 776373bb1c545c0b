"""Admission to the pages: where the service demands a token, so do they, once per session."""

from __future__ import annotations

import secrets

import streamlit as st

from accelera.settings import current_value
from accelera.ui.pictures import main_button

_ADMITTED = "admitted"


def is_admitted() -> bool:
    """Return whether the pages may be shown; where not yet, ask for the service's token instead of them."""
    expected = current_value("copilot_token")
    if not expected or st.session_state.get(_ADMITTED, False):
        return True
    st.title("Which token does the service ask for?", anchor=False)
    with st.form("admission", width=420):
        given = st.text_input("Token of the service", type="password", key="given_token")
        sent = st.form_submit_button("Open", type=main_button())
    if sent and secrets.compare_digest(given.strip().encode(), str(expected).encode()):
        st.session_state[_ADMITTED] = True
        st.rerun()
    if sent:
        st.error("This is not the token: it is in the file that `accelera serve --token-file` was given.")
    return False
