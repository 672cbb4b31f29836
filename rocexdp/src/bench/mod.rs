//! `rocexdp bench`.

/// Options of `rocexdp bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("not yet")
}
