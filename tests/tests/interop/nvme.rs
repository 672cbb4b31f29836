//! NVMe over Fabrics with the kernel's own: rocexdp as the host of a subsystem that the guest's `nvmet-rdma` serves from memory.
//!
//! The host is that of crate rocexdp's example `nvme`. What it writes is compared in the guest, on the block device; what it reads was put
//! there in the guest. Must not: speak NVMe itself.

use std::{
    fmt::Write as _,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use rocexdp::{lab::Host, rdma::cm::Cm};
use rocexdp_tests::softroce::{Guest, pattern};
use sha2::{Digest as _, Sha256};

use crate::{
    cm::name,
    run::{Expect, Family, Role, Run},
};

#[path = "../../../rocexdp/examples/nvme/host/mod.rs"]
mod host;

use host::{Controller, Direction, Failed, HostId, Namespace, Status};

const NQN: &str = "nqn.2026-01.io.rocexdp:memory";
const PORT: u16 = 4420;
const HOST: HostId = HostId(*b"rocexdp-interop!");
/// Bytes of the memory that is served, and of its blocks.
const DISK: u64 = 16 << 20;
const BLOCK: u64 = 512;
/// What the guest writes, and where.
const THEIRS: u64 = 1 << 20;
const AT_THEIRS: u64 = 8 << 20;

pub fn cases(run: &mut Run, cm: &Cm) {
    // The newer kernel, and the short form: one of them.
    let families = if run.full() {
        &Family::EACH[..]
    } else {
        &[Family::V4]
    };
    for family in families.iter().copied() {
        run.case(
            &name("NVMe over Fabrics, nvmet", Role::Requester, family),
            Expect::Clean,
            |run| host_of_guests_memory(run, cm, family),
        );
    }
}

/// Serves the memory.
fn serve(guest: &Guest, family: Family) {
    let address = family.of(Host::B);
    let kind = family.to_string().to_lowercase();
    let script = format!(
        "set -e
        modprobe brd rd_nr=1 rd_size={}
        modprobe nvmet-rdma
        [ -d /sys/kernel/config/nvmet ] || mount -t configfs none /sys/kernel/config
        cd /sys/kernel/config/nvmet/subsystems; mkdir {NQN}; cd {NQN}
        echo 1 > attr_allow_any_host
        mkdir namespaces/1; echo /dev/ram0 > namespaces/1/device_path; echo 1 > namespaces/1/enable
        cd ../../ports; mkdir 1; cd 1
        echo rdma > addr_trtype; echo {kind} > addr_adrfam; echo {address} > addr_traddr; echo {PORT} > addr_trsvcid
        ln -s /sys/kernel/config/nvmet/subsystems/{NQN} subsystems/",
        DISK >> 10
    );
    guest.run(&script).ok();
}

/// And no more: what is written is gone too.
fn end(guest: &Guest) {
    let script = format!(
        "cd /sys/kernel/config/nvmet
        rm ports/1/subsystems/{NQN}; rmdir ports/1
        rmdir subsystems/{NQN}/namespaces/1 subsystems/{NQN}
        modprobe -r brd"
    );
    guest.run(&script).ok();
}

/// The checksum of a part of the memory, as the guest's block device has it.
fn sha_there(guest: &Guest, at: u64, len: u64) -> String {
    // What it has read before it would show again: nvmet goes past its cache.
    let line = format!(
        "echo 3 > /proc/sys/vm/drop_caches; dd if=/dev/ram0 bs={BLOCK} skip={} count={} 2>/dev/null | sha256sum",
        at / BLOCK,
        len / BLOCK
    );
    let said = guest.run(&line).ok().stdout;
    said.split_whitespace().next().unwrap().to_owned()
}

fn sha(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

fn host_of_guests_memory(run: &mut Run, cm: &Cm, family: Family) {
    let guest = run.site.guest();
    serve(guest, family);
    let done = catch_unwind(AssertUnwindSafe(|| {
        let target = SocketAddr::new(family.of(Host::B), PORT);
        run.runtime.block_on(as_host(guest, cm, target));
    }));
    end(run.site.guest());
    if let Err(why) = done {
        resume_unwind(why);
    }
}

/// The status of a command that must fail.
fn status(failed: anyhow::Result<impl Sized>) -> Status {
    let Err(error) = failed else {
        panic!("a command that must fail was carried out");
    };
    match error.downcast_ref::<Failed>() {
        Some(failed) => failed.status,
        None => panic!("{error:#}"),
    }
}

async fn as_host(guest: &Guest, cm: &Cm, target: SocketAddr) {
    let unknown = Controller::connect(cm, target, &HOST, "nqn.2026-01.io.rocexdp:none", 32);
    // Invalid parameter of Connect.
    assert_eq!(status(unknown.await).code(), 0x182);

    let mut controller = Controller::connect(cm, target, &HOST, NQN, 32)
        .await
        .unwrap();
    let info = controller.info();
    assert_eq!(info.model, "Linux");
    assert!(
        !info.serial.is_empty() && !info.firmware.is_empty(),
        "{info:?}"
    );
    assert!(controller.version() >= (1, 3), "{:?}", controller.version());
    let namespaces = controller.namespaces().await.unwrap();
    let [on] = namespaces[..] else {
        panic!("{namespaces:?}")
    };
    let served = Namespace {
        id: 1,
        blocks: DISK / BLOCK,
        block: BLOCK,
    };
    assert_eq!(on, served);

    // 1 MiB that it READs, several commands at once, the last one short; a block and what a capsule carries at most, in capsules.
    let memory = controller.memory(2 << 20).unwrap();
    let in_capsule = controller.info().in_capsule;
    assert_eq!(in_capsule, 4096);
    let mut at = 8;
    for (seed, len) in [(1, (1 << 20) + 3 * BLOCK), (2, BLOCK), (3, in_capsule)] {
        let bytes: Vec<u8> = (0..len).map(|i| pattern(seed, i)).collect();
        memory.write(BLOCK, &bytes).unwrap();
        let written = controller.transfer(Direction::Write, &on, at, &memory, BLOCK, len);
        written.await.unwrap();
        controller.flush(&on).await.unwrap();
        assert_eq!(sha_there(guest, at * BLOCK, len), sha(&bytes), "{len} B");
        at += len / BLOCK;
    }

    // What the guest has put there, WRITten by it.
    let line = format!(
        "dd if=/dev/urandom of=/dev/ram0 bs=65536 seek={} count={} conv=fsync 2>/dev/null",
        AT_THEIRS >> 16,
        THEIRS >> 16
    );
    guest.run(&line).ok();
    for len in [THEIRS, BLOCK] {
        let block = AT_THEIRS / BLOCK;
        memory.write(0, &vec![0xee; len as usize + 1]).unwrap();
        let read = controller.transfer(Direction::Read, &on, block, &memory, 0, len);
        read.await.unwrap();
        let mut bytes = vec![0; len as usize + 1];
        memory.read(0, &mut bytes).unwrap();
        let (behind, bytes) = bytes.split_last().unwrap();
        assert_eq!(*behind, 0xee, "a byte behind them has changed");
        assert_eq!(sha(bytes), sha_there(guest, AT_THEIRS, len), "{len} B");
    }

    let (given_back, none) = controller.keys();
    // Two Connects, three Identifies, 8 Writes and 9 Reads.
    assert_eq!((given_back, none), (22, 0));
    // Behind the end: an error of the block layer is an internal one to nvmet (io-cmd-bdev.c, `blk_to_nvme_status`).
    let behind = controller.transfer(Direction::Read, &on, on.blocks - 1, &memory, 0, 2 * BLOCK);
    assert_eq!(status(behind.await).code(), 0x006);
    // A namespace that is not there: the target does not come to look at the data's key.
    let other = Namespace { id: 9, ..on };
    let other = controller.transfer(Direction::Read, &other, 0, &memory, 0, BLOCK);
    assert_eq!(status(other.await).code(), 0x00b);
    assert_eq!(controller.keys().1, 1, "the key is invalidated here");
    // It goes on all the same.
    let read = controller.transfer(Direction::Read, &on, 8, &memory, 0, BLOCK);
    read.await.unwrap();
    controller.disconnect().await.unwrap();
}
