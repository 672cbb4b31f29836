//! `rocexdp demo`.

/// Options of `rocexdp demo`.
#[derive(Debug, clap::Args)]
pub struct Args {}

pub(crate) fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("not yet")
}
