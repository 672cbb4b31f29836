//! The services of a queue pair, and what each carries.
//!
//! Must not: hold values; these are types only.

use rocexdp_proto::Transport;

use super::{
    flush::Flush,
    request::{AtomicWrite, CompareSwap, FetchAdd, Read, Send, Write, WriteImm},
    window::{Bind, LocalInvalidate},
};

mod sealed {
    pub trait Sealed {
        const TRANSPORT: rocexdp_proto::Transport;
    }
}
pub(super) use sealed::Sealed;

/// A service: [`Rc`], [`Uc`] or [`Ud`].
pub trait Service: Sealed + std::fmt::Debug + std::marker::Send + Sync + 'static {}

/// Reliable connected: each message arrives once and in order, or the queue pair fails.
#[derive(Clone, Copy, Debug)]
pub struct Rc;

/// Unreliable connected: messages arrive in order, or not at all; a request completes once it was sent.
#[derive(Clone, Copy, Debug)]
pub struct Uc;

/// Unreliable datagram: each request goes to a recipient of its own, and arrives or does not.
#[derive(Clone, Copy, Debug)]
pub struct Ud;

/// A service whose queue pairs have one peer each: [`Rc`] or [`Uc`].
#[diagnostic::on_unimplemented(message = "queue pairs of the service {Self} are not connected")]
pub trait Connected: Service {}

impl Connected for Rc {}
impl Connected for Uc {}

impl Sealed for Ud {
    const TRANSPORT: Transport = Transport::Ud;
}
impl Sealed for Rc {
    const TRANSPORT: Transport = Transport::Rc;
}
impl Sealed for Uc {
    const TRANSPORT: Transport = Transport::Uc;
}
impl Service for Rc {}
impl Service for Uc {}
impl Service for Ud {}

/// The service carries operation `O`.
#[diagnostic::on_unimplemented(message = "the service {Self} has no operation {O}")]
pub trait Carries<O>: Service {}

macro_rules! carries {
    ($service:ty: $($op:ty),*) => { $(impl Carries<$op> for $service {})* };
}

carries!(Rc: Send, Write, WriteImm, Read, CompareSwap, FetchAdd, AtomicWrite, Flush, Bind, LocalInvalidate);
carries!(Uc: Send, Write, WriteImm, Bind, LocalInvalidate);
carries!(Ud: Send);
