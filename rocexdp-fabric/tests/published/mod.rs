//! The published experiments that are kept in `data/reference`.

use std::fs;
use std::path::PathBuf;

use rocexdp_fabric::reference::Case;

pub type Error = Box<dyn std::error::Error>;

/// A file of an experiment.
pub fn file(name: &str, file: &str) -> Result<String, String> {
    let path: PathBuf = [
        env!("CARGO_MANIFEST_DIR"),
        "tests/data/reference",
        name,
        file,
    ]
    .iter()
    .collect();
    fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
}

pub fn case(name: &str) -> Result<Case, Error> {
    let config = file(name, "config.txt")?;
    Ok(Case::load(name, ("config.txt", &config), |named| {
        file(name, named)
    })?)
}
