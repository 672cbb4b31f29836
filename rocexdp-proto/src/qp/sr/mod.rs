//! Selective repeat: what two rocexdp ends agree on instead of go-back-N.
mod arrivals;
mod sender;
