"""Tasks that come one after the other, without end if need be: a window of them is in memory."""
