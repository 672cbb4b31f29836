//! The one command of bpf(2) that aya does not offer.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

/// `BPF_PROG_BIND_MAP` of linux/bpf.h, Linux 5.10.
const BPF_PROG_BIND_MAP: libc::c_long = 35;

/// The member `prog_bind_map` of `union bpf_attr`.
#[repr(C)]
struct BindMap {
    prog_fd: u32,
    map_fd: u32,
    flags: u32,
}

/// Makes `map` one of `program`'s maps although the program's code does not name it: whoever finds the program finds the
/// map, and it lives as long as the program does.
///
/// # Errors
/// The error of bpf(2): EPERM without CAP_BPF, EINVAL before Linux 5.10.
pub fn bind_map(program: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<()> {
    let attr = BindMap {
        prog_fd: program.as_raw_fd() as u32,
        map_fd: map.as_raw_fd() as u32,
        flags: 0,
    };
    // SAFETY: the kernel reads size_of::<BindMap>() bytes of an initialised structure and keeps no pointer to it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_BIND_MAP,
            &raw const attr,
            size_of::<BindMap>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
