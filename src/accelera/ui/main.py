"""Entry of the UI, as ``streamlit run`` starts it: ``streamlit run main.py -- --service URL``."""

from __future__ import annotations

import secrets
from pathlib import Path

import streamlit as st

from accelera.settings import current_value
from accelera.ui import fit, history, policies, timeline, traces
from accelera.ui.pictures import PAGES, main_button, page_of, theme

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


ASSETS = Path(__file__).parent / "assets"
# The answer begins at the top of the page; no setting of the theme says so.
_STYLE = "<style>[data-testid=stMainBlockContainer]{padding-top:4.75rem;padding-bottom:3rem}</style>"
# Said while the page's script runs: soon on a blank page, later on one that only changes. It has a place of
# its own above the answers, so that nothing moves when it comes and goes; it costs no message to the browser.
_ASKING = """<style>
@keyframes asking { to { visibility: visible; } }
[data-testid=stElementContainer]:has(.asking) { position: absolute; top: 3.9rem; width: auto; }
.asking { visibility: hidden; font-size: .9rem; opacity: .75; }
[data-test-script-state=running] .asking { animation: asking 0s linear 1.2s forwards; }
[data-testid=stMain]:not(:has(h1)) .asking { animation-delay: .3s !important; }
</style><div class="asking" role="status">Asking the service …</div>"""
SHOWN = {
    "fit": fit.show,
    "policies": policies.show,
    "timeline": timeline.show,
    "traces": traces.show,
    "history": history.show,
}


def main() -> None:
    """Draw the page that the address names."""
    st.set_page_config(page_title="Accelera Copilot", page_icon=str(ASSETS / "chip.svg"), layout="wide")
    st.logo(str(ASSETS / f"copilot-{theme()}.svg"), size="large", icon_image=str(ASSETS / "chip.svg"))
    st.html(_STYLE)
    st.html(_ASKING)
    chosen = st.navigation([page_of(name, SHOWN[name]) for name in PAGES], position="top")
    if is_admitted():
        chosen.run()


main()
