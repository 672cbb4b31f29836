//! Writes the inputs that fuzzing starts from: frames and files of the captures, and a handmade frame of each kind.
//!
//! `seeds DIR` makes DIR/TARGET/NAME for each target. An example, since `cargo fuzz` takes every other program for a
//! target.

use std::{error::Error, fs, path::Path};

use rocexdp_fuzz::{Look, write_arrivals};
use rocexdp_observe::capture::{PcapngWriter, Reader};

#[path = "../../rocexdp-common/tests/support/mod.rs"]
mod support;

fn main() -> Result<(), Box<dyn Error>> {
    let Some(dir) = std::env::args_os().nth(1) else {
        return Err("usage: seeds DIR".into());
    };
    let dir = Path::new(&dir);
    let [parser, verdict, capture] = ["parser", "verdict", "capture"].map(|t| dir.join(t));
    for dir in [&parser, &verdict, &capture] {
        fs::create_dir_all(dir)?;
    }
    for target in ["hostile", "operations", "cm"] {
        let dir = dir.join(target);
        fs::create_dir_all(&dir)?;
        // Their bytes are choices: any are as good.
        let mut rng = rocexdp_proto::rng::Rng::new(1);
        for n in 0..64 {
            let bytes: Vec<u8> = (0..40 + 12 * n).map(|_| rng.next_u32() as u8).collect();
            fs::write(dir.join(format!("random-{n}")), bytes)?;
        }
    }
    let mut frames: Vec<(String, Vec<u8>)> = support::encap::frames()
        .into_iter()
        .map(|(name, frame)| (name.replace([' ', ',', '(', ')'], "-"), frame))
        .collect();
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/captures");
    for entry in fs::read_dir(&captures)? {
        let path = entry?.path();
        if path.extension().is_none_or(|e| e != "pcap") {
            continue;
        }
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let mut reader = Reader::open(&path)?;
        let mut all = Vec::new();
        let mut ng = PcapngWriter::new(Vec::new(), "seed")?;
        ng.interfaces_of(reader.interfaces())?;
        while let Some(packet) = reader.next()? {
            // The first packets of each capture show what is special about it.
            if all.len() < 8 {
                all.push(packet.data.to_vec());
                ng.packet(
                    packet.interface,
                    packet.time_ns,
                    packet.wire_len,
                    packet.data,
                    [],
                )?;
            }
        }
        let arrivals = write_arrivals(all.iter().map(Vec::as_slice));
        fs::write(verdict.join(&name), arrivals)?;
        fs::write(capture.join(format!("{name}.pcapng")), ng.finish()?)?;
        let file = fs::read(&path)?;
        // Small ones: the fuzzer makes nothing of large ones.
        fs::write(
            capture.join(format!("{name}.pcap")),
            &file[..file.len().min(2000)],
        )?;
        frames.extend((0..).zip(all).map(|(n, f)| (format!("{name}-{n}"), f)));
    }
    for (name, frame) in &frames {
        let look = Look {
            from: 0,
            at: 0,
            ether_type: 0,
            missing: 0,
            frame,
        };
        fs::write(parser.join(name), look.write())?;
        let ip = Look {
            from: 1,
            frame: frame.get(14..).unwrap_or_default(),
            ..look
        };
        fs::write(parser.join(format!("{name}-ip")), ip.write())?;
    }
    Ok(())
}
