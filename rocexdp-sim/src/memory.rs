//! Application memory of tests and models: with bytes, and without.
//!
//! Must not: be used where the bytes must be shared with anyone but Rust (the product's memory is raw mappings).

use std::sync::{Arc, Mutex, PoisonError};

use rocexdp_proto::mem::{Atomic, Memory, MemoryFault};

/// Memory with bytes, for tests and models.
pub struct Bytes(Mutex<Vec<u8>>);

impl Bytes {
    /// `len` bytes, all `fill`.
    #[must_use]
    pub fn filled(len: usize, fill: u8) -> Arc<Self> {
        Arc::new(Self(Mutex::new(vec![fill; len])))
    }

    /// These bytes.
    #[must_use]
    pub fn of(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(bytes)))
    }

    /// A copy of what is there now.
    #[must_use]
    pub fn copy(&self) -> Vec<u8> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Takes the memory away: from now on it has no bytes, and accesses fault.
    pub fn take_away(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

impl Memory for Bytes {
    fn len(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = usize::try_from(offset).map_err(|_| MemoryFault)?;
        let end = start.checked_add(dst.len()).ok_or(MemoryFault)?;
        dst.copy_from_slice(bytes.get(start..end).ok_or(MemoryFault)?);
        Ok(())
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), MemoryFault> {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = usize::try_from(offset).map_err(|_| MemoryFault)?;
        let end = start.checked_add(src.len()).ok_or(MemoryFault)?;
        bytes
            .get_mut(start..end)
            .ok_or(MemoryFault)?
            .copy_from_slice(src);
        Ok(())
    }

    fn atomic(&self, offset: u64, op: Atomic) -> Result<u64, MemoryFault> {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = usize::try_from(offset).map_err(|_| MemoryFault)?;
        let word = bytes
            .get_mut(start..)
            .filter(|_| start.is_multiple_of(8))
            .and_then(|b| b.first_chunk_mut())
            .ok_or(MemoryFault)?;
        let original = u64::from_ne_bytes(*word);
        *word = op.apply(original).to_ne_bytes();
        Ok(original)
    }
}

/// Memory of any size that holds nothing: reading gives zeros, writing is forgotten. For long messages and big models.
pub struct NoBytes(pub u64);

impl NoBytes {
    fn check(&self, offset: u64, len: usize) -> Result<(), MemoryFault> {
        let end = offset.checked_add(len as u64).ok_or(MemoryFault)?;
        if end <= self.0 {
            Ok(())
        } else {
            Err(MemoryFault)
        }
    }
}

impl Memory for NoBytes {
    fn len(&self) -> u64 {
        self.0
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
        self.check(offset, dst.len())?;
        dst.fill(0);
        Ok(())
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), MemoryFault> {
        self.check(offset, src.len())
    }

    fn atomic(&self, offset: u64, _: Atomic) -> Result<u64, MemoryFault> {
        self.check(offset, 8)?;
        Ok(0)
    }
}
