//! A veth pair in a network namespace of its own, and the smallest XDP program that redirects to one socket.
//!
//! The namespace belongs to a thread and goes with it and with the last socket in it, whatever the test does. The
//! program is ten machine instructions loaded by bpf(2) directly: the AF_XDP layer is tested without the product's
//! eBPF object.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;

use rocexdp::xsk::{Xsk, XskConfig};

/// Name of the sending end.
pub const SENDER: &str = "xska";
/// Name of the receiving end, which has the XDP program.
pub const RECEIVER: &str = "xskb";

/// Both ends of a veth pair in this thread's namespace.
pub struct Lab {
    _link: OwnedFd,
    _program: OwnedFd,
    map: OwnedFd,
}

/// Runs `test` on a thread in a fresh namespace with a veth pair of this MTU. `qdisc`: root qdisc of the sender, none
/// if empty.
pub fn in_lab(mtu: u32, qdisc: &'static [&'static str], test: impl FnOnce(&Lab) + Send + 'static) {
    let thread = std::thread::spawn(move || {
        // SAFETY: affects this thread alone.
        let unshared = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(unshared, 0, "unshare: {}", std::io::Error::last_os_error());
        // Router solicitations and their like would be redirected too.
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
        run(
            "ip",
            &[
                "link", "add", SENDER, "type", "veth", "peer", "name", RECEIVER,
            ],
        );
        for end in [SENDER, RECEIVER] {
            run("ip", &["link", "set", end, "mtu", &mtu.to_string(), "up"]);
        }
        if !qdisc.is_empty() {
            run(
                "tc",
                &[&["qdisc", "replace", "dev", SENDER, "root"], qdisc].concat(),
            );
        }
        test(&Lab::new());
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Index of an interface in this thread's namespace.
pub fn ifindex(name: &str) -> u32 {
    let name = CString::new(name).unwrap();
    // SAFETY: a terminated string that outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    assert_ne!(index, 0, "no interface {name:?}");
    index
}

/// A counter of an interface from sysfs would be the wrong namespace's: asked of `ip`.
pub fn link_counter(interface: &str, direction: &str, name: &str) -> u64 {
    let output = Command::new("ip")
        .args(["-s", "-j", "link", "show", interface])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json[0]["stats64"][direction][name].as_u64().unwrap()
}

/// Opens a socket on `interface`.
pub fn open(interface: &str, adapt: impl FnOnce(&mut XskConfig)) -> Xsk {
    let mut config = XskConfig::new(interface, ifindex(interface), 0);
    adapt(&mut config);
    Xsk::open(&config).unwrap()
}

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

#[repr(C)]
#[derive(Default)]
struct MapUpdate {
    map_fd: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// `union bpf_attr` for BPF_PROG_LOAD, up to `expected_attach_type`.
#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

fn bpf<T>(command: libc::c_int, attributes: &T) -> std::io::Result<i32> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of a live structure that the command defines.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>(),
        )
    };
    if result < 0 {
        Err(std::io::Error::last_os_error())
    } else {
        Ok(result as i32)
    }
}

fn bpf_fd<T>(command: libc::c_int, attributes: &T) -> OwnedFd {
    let fd = bpf(command, attributes).unwrap_or_else(|error| panic!("bpf({command}): {error}"));
    // SAFETY: a new descriptor that nobody else owns.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// One instruction: opcode, destination and source register, offset, immediate.
const fn instruction(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> [u8; 8] {
    let (off, imm) = (off.to_le_bytes(), imm.to_le_bytes());
    [
        code,
        dst | src << 4,
        off[0],
        off[1],
        imm[0],
        imm[1],
        imm[2],
        imm[3],
    ]
}

impl Lab {
    fn new() -> Self {
        const BPF_MAP_CREATE: libc::c_int = 0;
        const BPF_PROG_LOAD: libc::c_int = 5;
        const BPF_LINK_CREATE: libc::c_int = 28;
        const BPF_MAP_TYPE_XSKMAP: u32 = 17;
        const BPF_PROG_TYPE_XDP: u32 = 6;
        const BPF_XDP: u32 = 37;
        const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
        const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

        let map = bpf_fd(
            BPF_MAP_CREATE,
            &MapCreate {
                map_type: BPF_MAP_TYPE_XSKMAP,
                key_size: 4,
                value_size: 4,
                max_entries: 1,
            },
        );
        let program = [
            instruction(0x61, 2, 1, 16, 0), // r2 = ctx->rx_queue_index
            instruction(0x18, 1, 1, 0, map.as_raw_fd()), // r1 = map
            instruction(0, 0, 0, 0, 0),
            instruction(0xb7, 3, 0, 0, 2),  // r3 = XDP_PASS on a miss
            instruction(0x85, 0, 0, 0, 51), // call bpf_redirect_map
            instruction(0x95, 0, 0, 0, 0),  // return it
        ];
        let license = c"Dual MIT/GPL";
        let program = bpf_fd(
            BPF_PROG_LOAD,
            &ProgLoad {
                prog_type: BPF_PROG_TYPE_XDP,
                insn_cnt: program.len() as u32,
                insns: program.as_ptr().addr() as u64,
                license: license.as_ptr().addr() as u64,
                prog_flags: BPF_F_XDP_HAS_FRAGS,
                expected_attach_type: BPF_XDP,
                ..ProgLoad::default()
            },
        );
        let link = bpf_fd(
            BPF_LINK_CREATE,
            &LinkCreate {
                prog_fd: program.as_raw_fd() as u32,
                target_ifindex: ifindex(RECEIVER),
                attach_type: BPF_XDP,
                flags: XDP_FLAGS_DRV_MODE,
            },
        );
        Self {
            _link: link,
            _program: program,
            map,
        }
    }

    /// Redirects what the receiver gets to this socket.
    pub fn steer_to(&self, xsk: &Xsk) {
        const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
        let (key, value) = (0_u32, xsk.as_fd().as_raw_fd());
        let update = MapUpdate {
            map_fd: self.map.as_raw_fd() as u32,
            key: std::ptr::from_ref(&key).addr() as u64,
            value: std::ptr::from_ref(&value).addr() as u64,
            ..MapUpdate::default()
        };
        bpf(BPF_MAP_UPDATE_ELEM, &update).unwrap();
    }

    /// A sender and a receiver to which it is steered.
    pub fn pair(&self, adapt: impl Fn(&mut XskConfig)) -> (Xsk, Xsk) {
        let (sender, receiver) = (open(SENDER, &adapt), open(RECEIVER, &adapt));
        self.steer_to(&receiver);
        (sender, receiver)
    }
}
