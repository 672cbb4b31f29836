//! `BPF_MAP_LOOKUP_BATCH` of bpf(2), which aya does not offer: many entries of a hash map by one system call.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _},
};

use aya::maps::{MapError, MapFd, MapInfo};

/// `BPF_MAP_LOOKUP_BATCH` of linux/bpf.h, Linux 5.6.
const BPF_MAP_LOOKUP_BATCH: libc::c_long = 24;

/// The member `batch` of `union bpf_attr`.
#[repr(C)]
struct Batch {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// A hash map to read by batches.
#[derive(Debug)]
pub struct Table {
    fd: MapFd,
    key_size: usize,
    value_size: usize,
    /// Most entries at a time.
    pub capacity: u32,
}

impl Table {
    /// Opens a map.
    ///
    /// # Errors
    /// Without CAP_BPF or CAP_SYS_ADMIN, or when it is gone.
    pub fn open(info: &MapInfo) -> Result<Self, MapError> {
        Ok(Self {
            fd: info.fd()?,
            key_size: info.key_size() as usize,
            // Values are copied in whole words (`__htab_map_lookup_and_delete_batch`: round_up(value_size, 8)).
            value_size: (info.value_size() as usize).next_multiple_of(8),
            capacity: info.max_entries(),
        })
    }
}

/// Where a walk through a hash map stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Walk {
    /// The kernel's own mark: for hash maps the number of the next bucket (`__htab_map_lookup_and_delete_batch` in
    /// kernel/bpf/hashtab.c).
    bucket: u32,
    begun: bool,
    done: bool,
}

impl Walk {
    /// Whether nothing is left.
    #[must_use]
    pub fn done(&self) -> bool {
        self.done
    }

    /// Fills `keys` and `values` with entries that the walk has not met yet, as many as there is room for, and returns how
    /// many. Each bucket is read whole: entries that come and go meanwhile are met once or not at all.
    ///
    /// # Errors
    /// The error of bpf(2): ENOSPC when a bucket has more entries than there is room for, EINVAL before Linux 5.6.
    pub fn read(&mut self, table: &Table, keys: &mut [u8], values: &mut [u8]) -> io::Result<usize> {
        let room = match (
            keys.len().checked_div(table.key_size),
            values.len().checked_div(table.value_size),
        ) {
            (Some(keys), Some(values)) => keys.min(values),
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let mut next = 0_u32;
        let mut attr = Batch {
            in_batch: if self.begun {
                (&raw const self.bucket).addr() as u64
            } else {
                0
            },
            out_batch: (&raw mut next).addr() as u64,
            keys: keys.as_mut_ptr().addr() as u64,
            values: values.as_mut_ptr().addr() as u64,
            count: u32::try_from(room).unwrap_or(u32::MAX),
            map_fd: table.fd.as_fd().as_raw_fd() as u32,
            elem_flags: 0,
            flags: 0,
        };
        // SAFETY: the kernel reads and writes size_of::<Batch>() bytes of an initialised structure, writes at most `count`
        // keys and values into buffers that have room for so many of this map's, four bytes into `next`, reads four bytes of
        // `self.bucket`, and keeps no pointer.
        let result = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                BPF_MAP_LOOKUP_BATCH,
                &raw mut attr,
                size_of::<Batch>(),
            )
        };
        if result != 0 {
            let error = io::Error::last_os_error();
            // The last buckets were read.
            if error.raw_os_error() != Some(libc::ENOENT) {
                return Err(error);
            }
            self.done = true;
        }
        self.begun = true;
        self.bucket = next;
        Ok((attr.count as usize).min(room))
    }
}
