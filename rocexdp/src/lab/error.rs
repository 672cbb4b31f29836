//! Why a lab does not do what was asked, with what to do.

use std::{fmt, io};

use crate::net;

/// Why a lab does not do what was asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The configuration makes no sense.
    Config(String),
    /// A lab of that name is there.
    Exists(String),
    /// No lab of that name is there.
    Missing(String),
    /// A step failed.
    Step(&'static str, io::Error),
    /// Something about an interface.
    Net(net::Error),
    /// Something about BPF.
    Bpf(&'static str, Box<dyn std::error::Error + Send + Sync>),
    /// The embedded object lacks a part: a build that does not fit.
    Object(&'static str),
    /// The wire's program was not attached in driver mode to this port.
    NotDriverMode(String),
    /// The kernel can't redirect frames, or not those in fragments, to this port.
    NoRedirect(String),
    /// An AF_XDP socket can't be opened.
    Socket(crate::xsk::XskError),
    /// The keeper process said so.
    Keeper(String),
}

impl Error {
    pub(super) fn step(doing: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::Step(doing, error)
    }

    pub(super) fn bpf<E: std::error::Error + Send + Sync + 'static>(
        doing: &'static str,
    ) -> impl Fn(E) -> Self {
        move |error| Self::Bpf(doing, Box::new(error))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(text) | Self::Keeper(text) => f.write_str(text),
            Self::Exists(name) => {
                write!(
                    f,
                    "lab {name} exists already (remove it: rocexdp lab down --name {name})"
                )
            }
            Self::Missing(name) => {
                write!(
                    f,
                    "there is no lab {name} (make it: rocexdp lab up --name {name})"
                )
            }
            Self::Step(doing, error) => {
                write!(f, "lab: {doing}: {error}")?;
                match error.kind() {
                    io::ErrorKind::PermissionDenied => f.write_str(" (a lab needs root)"),
                    _ => Ok(()),
                }
            }
            Self::Net(error) => write!(f, "lab: {error}"),
            Self::Bpf(doing, error) => write!(f, "lab: {doing}: {}", chain(error.as_ref())),
            Self::Object(part) => write!(f, "lab: the wire's object has no {part}: rebuild it"),
            Self::NotDriverMode(port) => {
                write!(
                    f,
                    "lab: the wire's program is not in driver mode on port {port}"
                )
            }
            Self::NoRedirect(port) => write!(
                f,
                "lab: the kernel can't redirect frames in fragments to veth port {port} (Linux 6.6 or newer is needed)"
            ),
            Self::Socket(error) => write!(f, "lab: {error}"),
        }
    }
}

/// An error with its causes: aya's say little without.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

impl std::error::Error for Error {}

impl From<net::Error> for Error {
    fn from(error: net::Error) -> Self {
        Self::Net(error)
    }
}
