//! Thin wrappers over system calls that no dependency covers: the only place outside `xsk` and the raw `Memory` where
//! `unsafe` is allowed. No policy here.

pub mod bpf;
pub mod bpf_batch;
pub mod clock;
pub mod ethtool;
pub mod lock_file;
pub mod netns;
pub mod promiscuous;
pub mod realtime;
