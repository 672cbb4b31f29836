//! `rocexdp demo`: the whole job on one machine, to be looked at.
//!
//! A lab, `rocexdp run` on both its hosts, a file copied from a to b over a clean wire and over a bad one, and what the BPF
//! maps of both hosts say about it. The daemons and copies are this program, started as a user would. Everything is removed
//! at the end, on an error and on SIGINT, SIGTERM or SIGHUP; every wait is bounded.

mod host;

mod sampler;
mod show;

use std::{
    fs::File,
    io::{Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rocexdp_common::fault::Faults;
use rocexdp_proto::rng::Rng;
use sha2::{Digest, Sha256};

use self::{host::Station, sampler::Sampler};
use crate::{
    control::{copy::CopyReport, exchange::Sha256Digest, settings::UsageError, units::ByteSize},
    lab::{BadImpairment, Host, Impairment, Lab, LabConfig},
    out,
    process::{Cancel, on_own_thread},
};

/// Options of `rocexdp demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Size of the file: 1M to 16G
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    size: ByteSize,
    /// Decides the file's bytes and which packets are hit
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// What the bad wire does, as in `rocexdp lab impair`
    #[arg(long, value_name = "FAULTS", default_value = "drop=1%,ce=5%", value_parser = faults_text)]
    impair: String,
    /// Keep everything until Ctrl-C, to look around
    #[arg(long)]
    keep: bool,
}

fn faults_text(text: &str) -> Result<String, BadImpairment> {
    text.parse::<Impairment>().map(|_| text.to_owned())
}

/// Slowest copy that is waited for, bytes a second.
const SLOWEST: u64 = 1_000_000;

/// Runs the demo.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if !(1 << 20..=16 << 30).contains(&args.size.0) {
        return Err(UsageError(format!("--size {}: must be 1M to 16G", args.size)).into());
    }
    let args = args.clone();
    on_own_thread(move |cancel| demonstrate(&args, &cancel))
}

fn demonstrate(args: &Args, cancel: &Arc<Cancel>) -> anyhow::Result<()> {
    let name = format!("rocexdp-demo{}", std::process::id());
    out::line(format_args!(
        "== A lab: host a - wire - host b, three network namespaces ({name}-*)"
    ))?;
    // Dropped in the reverse order: daemons, then the lab, then files.
    let place = tempfile::Builder::new()
        .prefix("rocexdp-demo-")
        .tempdir()
        .context("a directory for files")?;
    let mut lab = Lab::up(LabConfig::named(&name))?;
    let outcome = in_lab(args, cancel, &mut lab, place.path());
    let removed = lab.down();
    let files = place.close();
    outcome?;
    removed?;
    files.context("removing the files")?;
    out::line("== Removed: daemons, namespaces, files")
}

fn in_lab(args: &Args, cancel: &Arc<Cancel>, lab: &mut Lab, place: &Path) -> anyhow::Result<()> {
    out::line(format_args!(
        "== A file of {} of random bytes, seed {}",
        args.size, args.seed
    ))?;
    let files = Files::make(place, args, cancel)?;
    out::line("== rocexdp on both hosts")?;
    let a = Station::start(lab, Host::A, None, cancel)?;
    let b = Station::start(lab, Host::B, Some(&files.receive()), cancel)?;
    a.wait_ready(cancel)?;
    b.wait_ready(cancel)?;

    out::line(format_args!(
        "\n== {} from a to b by RDMA WRITE, clean wire",
        args.size
    ))?;
    let clean = one_copy(&Run {
        args,
        cancel,
        lab,
        files: &files,
        a: &a,
        b: &b,
        name: "clean",
    })?;
    show::tables(&a, &b, &clean.report)?;
    show::links(lab)?;
    if clean.report.retransmitted_packets != 0 {
        out::line(
            "note: packets were sent again although the wire is clean (is the machine busy?)",
        )?;
    }

    out::line(format_args!(
        "\n== The same with a bad wire: {}, seed {}",
        args.impair, args.seed
    ))?;
    let wanted: Impairment = args.impair.parse()?;
    lab.impair(Faults {
        seed: args.seed,
        ..wanted.0
    })?;
    let bad = one_copy(&Run {
        args,
        cancel,
        lab,
        files: &files,
        a: &a,
        b: &b,
        name: "bad",
    })?;
    show::tables(&a, &b, &bad.report)?;
    show::links(lab)?;
    show::recovery(&bad.report, &bad.samples)?;

    if args.keep {
        show::look_around(&a, &b)?;
        cancel.wait();
    }
    a.stop()?;
    b.stop()?;
    Ok(())
}

/// What one copy needs.
struct Run<'a> {
    args: &'a Args,
    cancel: &'a Cancel,
    lab: &'a Lab,
    files: &'a Files,
    a: &'a Station,
    b: &'a Station,
    name: &'a str,
}

/// What one copy gave.
struct Outcome {
    report: CopyReport,
    samples: Vec<sampler::Sample>,
}

fn one_copy(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let sampler = Sampler::start(run.lab.host(Host::A), run.a.interface())?;
    let limit = Duration::from_secs(60 + run.args.size.0 / SLOWEST);
    let report = run.a.copy(
        run.lab,
        &run.files.source,
        run.b,
        run.name,
        &run.files.token,
        limit,
        run.cancel,
    );
    let samples = sampler.stop()?;
    let report = report?;
    let arrived = digest(&run.files.receive().join(run.name), run.cancel)?;
    if arrived != run.files.sha256 || report.bytes != run.args.size.0 {
        bail!(
            "the file at b is not the file at a: SHA-256 {arrived}, not {}",
            run.files.sha256
        );
    }
    let rate = report.gigabits_per_second.unwrap_or(0.0);
    out::line(format_args!(
        "{} in {:.2} s: {rate:.2} Gb/s; {} packets, {} of them sent again\n\
         SHA-256 of the file at a: {}\n\
         SHA-256 of the file at b: {arrived}  (intact)",
        ByteSize(report.bytes),
        report.transfer_seconds,
        report.tx_packets,
        report.retransmitted_packets,
        run.files.sha256
    ))?;
    Ok(Outcome { report, samples })
}

/// The demo's files.
struct Files {
    place: PathBuf,
    source: PathBuf,
    token: PathBuf,
    sha256: Sha256Digest,
}

impl Files {
    fn make(place: &Path, args: &Args, cancel: &Cancel) -> anyhow::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;

        let files = Self {
            place: place.to_owned(),
            source: place.join("file"),
            token: place.join("token"),
            sha256: random_file(&place.join("file"), args.size.0, args.seed, cancel)?,
        };
        std::fs::create_dir(files.receive()).context("making the receive directory")?;
        let secret: [u8; 16] = rand::random();
        File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&files.token)
            .and_then(|mut file| writeln!(file, "{}", crate::control::hex::encode(&secret)))
            .context("writing the token")?;
        Ok(files)
    }

    fn receive(&self) -> PathBuf {
        self.place.join("received")
    }
}

/// Writes a file whose bytes the seed decides, and returns their digest.
fn random_file(path: &Path, size: u64, seed: u64, cancel: &Cancel) -> anyhow::Result<Sha256Digest> {
    let mut rng = Rng::new(seed);
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 20];
    let mut left = size;
    let mut file = File::create(path).context("making the file")?;
    while left > 0 {
        cancel.check()?;
        for word in block.chunks_exact_mut(8) {
            word.copy_from_slice(&rng.next_u64().to_le_bytes());
        }
        let len = usize::try_from(left)
            .unwrap_or(block.len())
            .min(block.len());
        let part = block.get(..len).unwrap_or_default();
        file.write_all(part).context("writing the file")?;
        hash.update(part);
        left -= len as u64;
    }
    Ok(Sha256Digest(hash.finalize().into()))
}

fn digest(path: &Path, cancel: &Cancel) -> anyhow::Result<Sha256Digest> {
    let what = || format!("reading {}", path.display());
    let mut file = File::open(path).with_context(what)?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 20];
    let begun = Instant::now();
    loop {
        cancel.check()?;
        let read = file.read(&mut block).with_context(what)?;
        if read == 0 {
            return Ok(Sha256Digest(hash.finalize().into()));
        }
        if begun.elapsed() > Duration::from_secs(600) {
            bail!("{}: takes too long", what());
        }
        hash.update(block.get(..read).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_the_file() {
        let place = tempfile::tempdir().unwrap();
        let cancel = Cancel::default();
        let make = |name: &str, size, seed| {
            let path = place.path().join(name);
            let digest = random_file(&path, size, seed, &cancel).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().len(), size);
            assert_eq!(super::digest(&path, &cancel).unwrap(), digest);
            digest
        };
        let size = (1 << 20) + 3;
        let first = make("1", size, 1);
        assert_eq!(first, make("2", size, 1));
        assert_ne!(first, make("3", size, 2));
        assert_ne!(first, make("4", size - 1, 1));
    }
}
