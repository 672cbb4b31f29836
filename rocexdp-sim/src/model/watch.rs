//! Memory that watches: every access an endpoint makes is judged when it is made.
//!
//! So the order of writes is checked as somebody sees it who looks at the memory all the time. Must not: decide what is right
//! (the oracle does).

use std::sync::{Arc, Mutex, PoisonError};

use rocexdp_proto::mem::{Atomic, Memory, MemoryFault};

use super::state::{SOURCE_LEN, State, TARGET_LEN, source};

/// What a piece of memory is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Payload is taken from here.
    Source,
    /// Receive requests name this.
    Receive,
    /// What READs and atomics fetch lands here.
    Landing,
    /// Peers reach this one.
    Target(usize),
}

impl Role {
    /// Place among `EndState::gone`.
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Source => 0,
            Self::Receive => 1,
            Self::Landing => 2,
            Self::Target(t) => 3 + t,
        }
    }
}

/// Memory of one end.
pub struct Watched {
    /// What the model knows.
    pub state: Arc<Mutex<State>>,
    /// Whose memory.
    pub end: usize,
    /// What it is for.
    pub role: Role,
}

impl Watched {
    fn judge<T>(
        &self,
        offset: u64,
        f: impl FnOnce(&mut State) -> Result<T, MemoryFault>,
    ) -> Result<T, MemoryFault> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.ends[self.end].gone[self.role.index()] {
            if self.role == Role::Receive {
                state.tried(self.end, offset);
            }
            return Err(MemoryFault);
        }
        f(&mut state)
    }
}

impl Memory for Watched {
    fn len(&self) -> u64 {
        match self.role {
            Role::Source => u64::from(SOURCE_LEN),
            // Nothing is stored there.
            Role::Receive | Role::Landing => 1 << 40,
            Role::Target(_) => u64::from(TARGET_LEN),
        }
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
        self.judge(offset, |state| match self.role {
            Role::Source => {
                let from = usize::try_from(offset).map_err(|_| MemoryFault)?;
                let bytes = source().get(from..from + dst.len());
                dst.copy_from_slice(bytes.ok_or(MemoryFault)?);
                Ok(())
            }
            Role::Target(mem) => state.target_read(self.end, mem, offset, dst),
            Role::Receive | Role::Landing => {
                state.wrong(|| format!("end {} reads its {:?} buffers", self.end, self.role));
                Err(MemoryFault)
            }
        })
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), MemoryFault> {
        self.judge(offset, |state| match self.role {
            Role::Receive => state.receive_write(self.end, offset, src),
            Role::Landing => state.landing_write(self.end, offset, src),
            Role::Target(mem) => state.target_write(self.end, mem, offset, src),
            Role::Source => {
                state.wrong(|| format!("end {} writes to its sources", self.end));
                Err(MemoryFault)
            }
        })
    }

    fn atomic(&self, offset: u64, op: Atomic) -> Result<u64, MemoryFault> {
        self.judge(offset, |state| match self.role {
            Role::Target(mem) => state.target_atomic(self.end, mem, offset, op),
            _ => {
                state.wrong(|| format!("end {}: atomic on {:?}", self.end, self.role));
                Err(MemoryFault)
            }
        })
    }

    fn flush(&self, offset: u64, len: u64, persistent: bool) -> Result<(), MemoryFault> {
        self.judge(offset, |state| match self.role {
            Role::Target(mem) if !persistent => state.target_flush(self.end, mem, offset, len),
            _ => {
                state.wrong(|| format!("end {}: flush of {:?}", self.end, self.role));
                Err(MemoryFault)
            }
        })
    }
}
