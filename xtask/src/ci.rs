//! ci
use anyhow::Result;
use std::process::ExitCode;
pub fn run(_skip: bool) -> Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
