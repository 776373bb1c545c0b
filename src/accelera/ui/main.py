"""Entry of the UI, as ``streamlit run`` starts it: ``streamlit run main.py -- --service URL``."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from accelera.ui import fit, history, policies, timeline, traces
from accelera.ui.admission import is_admitted
from accelera.ui.pages import PAGES, page_of
from accelera.ui.pictures import theme

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
