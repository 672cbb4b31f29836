//! The real peer: Debian's kernel with Soft-RoCE (`rdma_rxe`), rdma-core and perftest in a virtual machine, in place of a lab's host b.
//!
//! A [`Site`] is a lab whose host b is the guest: its tap and the wire's end are in a bridge, so that the guest has b's addresses, and
//! everything that a lab can do to frames it does to the guest's. [`Guest`] runs commands in it: to their end ([`Guest::run`]), in the
//! background ([`Guest::start`]), or the verbs shell ([`Guest::vsh`]), which makes any request by hand. [`Capture`] records a case on
//! the tap, and has `rocexdp pcap` judge it. A new case of a program needs no more than that; see `tests/tests/interop`.
//!
//! Needs root, QEMU and Debian's packages: where they can't be had, [`Site::up`] says `SKIP`. Must not know cases.

mod capture;
mod channel;
mod guest;
pub mod inside;
mod site;
mod vsh;

pub use capture::{Capture, Report};
pub use guest::{Guest, Kernel, Task};
pub use inside::Inside;
pub use site::{NEAR_TAP, Site};
pub use vsh::{Answer, Vsh, Wc, pattern};
