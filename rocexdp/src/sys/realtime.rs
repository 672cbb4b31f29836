//! Real-time scheduling of the calling thread.

use std::io;

/// Has the calling thread run before all that are not real-time, as soon as it has something to do (`SCHED_RR`, lowest
/// priority). For threads that sleep most of the time.
///
/// # Errors
/// `EPERM`: the caller lacks CAP_SYS_NICE, or its cgroup has no real-time budget.
pub fn run_first() -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameter lives through the call, which reads it; 0 is the calling thread.
    let status = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameter) };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
